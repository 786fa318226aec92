"""The transaction of a task function in this process (`ctx.transaction()`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from synergon.context import OpenTransaction
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.node.attempts.attempt import Services
from synergon.stores.base import TaskTransaction


class NodeTaskTransaction(OpenTransaction):
    """The transaction opens at the first `with` or `async with`. The runner ends it when the task function has
    ended."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._opening = asyncio.Lock()
        self.opened: TaskTransaction | None = None

    def __enter__(self) -> Any:
        with self._lock:
            if self.opened is None:
                self.opened = self._node.call_from_thread(self._node.begin(), "async with ctx.transaction()")
        return self.opened.blocking_connection

    def __exit__(self, *_: object) -> None:
        """Does nothing: the runner commits or rolls back after the task function."""

    async def __aenter__(self) -> Any:
        async with self._opening:  # two concurrent calls in one task function would block each other
            if self.opened is None:
                self.opened = await self._node.begin()
        return self.opened.connection

    async def __aexit__(self, *_: object) -> None:
        """Does nothing: the runner commits or rolls back after the task function."""

    async def finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Commit the writes together with the outcomes."""
        assert self.opened is not None
        return await self.opened.finish(fenced_outcomes)

    def explain(self, error: BaseException) -> BaseException:
        """The store's own error, if the store recognizes the error of the task function or one of its causes
        (`TaskTransaction.explain`); otherwise the given error."""
        cause: BaseException | None = error
        seen: set[int] = set()
        while self.opened is not None and cause is not None and id(cause) not in seen:
            seen.add(id(cause))  # the causes of exceptions may form a cycle
            explained = self.opened.explain(cause)
            if explained is not None:
                explained.__cause__ = error
                return explained
            cause = cause.__cause__
        return error

    async def rollback(self) -> None:
        """Undo the writes of the task function, if the transaction was opened."""
        if self.opened is not None:
            await self.opened.rollback()
