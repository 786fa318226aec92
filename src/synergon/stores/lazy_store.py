"""A store that connects at its first call. Child processes use it, because most task functions there never use the
store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from synergon.errors import NotAvailable
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.base import Store


class LazyStore:
    """Opens a store at the first call. Raises then if the store cannot be shared between a child process and its
    parent."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._is_open = False
        self.url = store.url
        self.capabilities = store.capabilities

    async def open(self) -> None:
        """Does nothing: the first call opens the store."""

    async def close(self) -> None:
        """Disconnect, if the store was opened."""
        if self._is_open:
            await self._store.close()

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert on the caller's own connection, which is open already."""
        return self._store.insert_on_sync(connection, tasks)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Any other call of the store, which opens it first."""

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
