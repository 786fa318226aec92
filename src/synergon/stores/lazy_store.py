"""A store that connects at its first call. Used in child processes, where most task functions never use the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from synergon.errors import NotAvailable
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.base import Store


class LazyStore:
    """Opens the wrapped store at the first call. That call raises `NotAvailable` if the store cannot be shared between
    processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._is_open = False
        self.url: Final = store.url
        self.capabilities: Final = store.capabilities

    async def open(self) -> None:
        """Does nothing: the first call opens the store."""

    async def close(self) -> None:
        """Disconnect, if the store was opened."""
        if self._is_open:
            await self._store.close()

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert on the caller's own connection. Does not open the store: the connection is open already."""
        return self._store.insert_on_sync(connection, tasks)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function that opens the store, then makes the call of this name."""

        async def call(*arguments: Any, **named: Any) -> Any:
            await self._open()
            return await getattr(self._store, name)(*arguments, **named)

        return call

    async def _open(self) -> None:
        if not self.capabilities.shared:
            raise NotAvailable(f"{self.url} lives in one process, and this task function runs in a child of it")
        async with self._lock:
            if not self._is_open:
                await self._store.open()
                self._is_open = True
