"""Says at once, where a task is enqueued, that no live node could ever run it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Final

from synergon.client.cooperative import made_in_chunks
from synergon.errors import StoreError
from synergon.explain.requirement_text import requirements_in_words, why_never
from synergon.model.node_status import NodeStatus, could_run, read_status, requirements_on
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.base import Store

REQUIREMENTS_KEPT: Final = 10_000
"""So many different ones are remembered, so that none is spoken of again and again."""

SHOWN_NODES: Final = 5


class UnrunnableWarning:
    """Looks at the node table where something is demanded, and warns if there are nodes and none of them will do: once,
    and once more if there was one that would in between.

    A warning and nothing else: a node that can may be started at any time. It costs nothing for tasks of `known` kinds
    that require nothing; for others it reads the node table, not more often than nodes publish their status. The
    requirements of kinds that are not registered here come from the nodes that run them.
    """

    def __init__(
        self, monotonic: Callable[[], float], logger: logging.Logger, refresh_seconds: float, known: Container[str]
    ) -> None:
        self._monotonic = monotonic
        self._logger = logger
        self._refresh_seconds = refresh_seconds
        self._known = known
        self._judged: set[tuple[str, str]] = set()
        """By the last look."""
        self._hopeless: set[tuple[str, str]] = set()
        """Those that were spoken of."""
        self._nodes: list[NodeRecord] = []
        self._read_at: float | None = None

    async def consider(
        self, store: Store, tasks: Sequence[NewTask], inserted: Sequence[Insertion] | None = None
    ) -> None:
        """Warn of those that nobody could run; never raises because of it. `inserted` says what became of them:
        whatever gave way to a live task with its key does not count."""
        wanted = {(task.kind, task.requirements) for task in _stored(tasks, inserted) if self.is_of_interest(task)}
        if not wanted:
            return
        if self._is_stale() or len(self._judged) > REQUIREMENTS_KEPT:
            self._judged.clear()
        new = wanted - self._judged
        if not new:
            return
        self._judged |= new
        try:
            nodes = await self._live_nodes(store)
        except StoreError:
            return
        runners = {kind: [node for node in nodes if kind in node.kinds] for kind, _ in new}
        states = {kind: _states(found) for kind, found in runners.items()}
        await made_in_chunks(lambda each: self._judge(*each, states[each[0]]), sorted(new))

    def is_of_interest(self, task: NewTask) -> bool:
        """Whether it may requirements something."""
        return task.requirements != KIND_DEFAULT or task.kind not in self._known

    async def _live_nodes(self, store: Store) -> list[NodeRecord]:
        if self._is_stale():
            now = self._monotonic()
            self._nodes = [node for node in await store.nodes() if node.lease_left > 0]
            self._read_at = now
        return self._nodes

    def _is_stale(self) -> bool:
        return self._read_at is None or self._monotonic() - self._read_at > self._refresh_seconds

    def _judge(self, kind: str, text: str, states: Sequence[tuple[str, NodeStatus]]) -> None:
        if not states:  # somebody may be about to start
            self._judged.discard((kind, text))
            return
        if any(could_run(state, kind, text) for _, state in states):
            self._hopeless.discard((kind, text))
            return
        if (kind, text) in self._hopeless:
            return
        if len(self._hopeless) > REQUIREMENTS_KEPT:
            self._hopeless.clear()
        self._hopeless.add((kind, text))
        self._warn(kind, text, states)

    def _warn(self, kind: str, text: str, states: Sequence[tuple[str, NodeStatus]]) -> None:
        reasons: list[str] = []
        for name, state in states:
            requirements = requirements_on(state, kind, text)
            reasons.append(f"{name} {' and '.join(why_never(requirements, frozenset(state.labels), state.totals))}")
        if len(reasons) > SHOWN_NODES:
            reasons[SHOWN_NODES:] = [f"and so on for {len(reasons) - SHOWN_NODES} more"]
        self._logger.warning(
            "no live node could ever run this task of kind %r (%s): %s; it waits for one that can",
            kind,
            requirements_in_words(requirements_on(states[0][1], kind, text)),
            ", ".join(reasons),
            extra={"kind": kind},
        )


def _stored(tasks: Sequence[NewTask], inserted: Sequence[Insertion] | None) -> Iterable[NewTask]:
    """Those that stand in the store as they were asked for."""
    if inserted is None:
        return tasks
    pairs = zip(tasks, inserted, strict=True)
    return (task for task, found in pairs if found.created or task.on_conflict == "replace")


def _states(nodes: Iterable[NodeRecord]) -> list[tuple[str, NodeStatus]]:
    """What they say of themselves, in the order of their names; several may have the same."""
    return [(node.name, read_status(bytes(node.published))) for node in sorted(nodes, key=lambda node: node.name)]


class ChildrenToCheck:
    """Considers what tasks have enqueued, after it is stored and beside everything else: nobody waits for a warning."""

    def __init__(self, consider: Callable[[Sequence[NewTask]], Awaitable[None]]) -> None:
        self._consider = consider
        self._stored: list[NewTask] = []
        self._event = asyncio.Event()

    def note(self, tasks: Iterable[NewTask]) -> None:
        """These are stored."""
        self._stored += tasks
        self._event.set()

    async def step(self) -> None:
        """Consider what was stored, when something was."""
        await self._event.wait()
        self._event.clear()
        stored, self._stored = self._stored, []
        await self._consider(stored)
