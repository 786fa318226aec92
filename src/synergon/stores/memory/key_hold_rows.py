"""Holds of unique keys in the memory store: implements `stores.task_primitives.KeyHoldRows` over the store's tables."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergon.stores import task_primitives as port
from synergon.stores.rows import KeyHold, KeyName

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class KeyHoldRows(port.KeyHoldRows):
    """Implements `stores.task_primitives.KeyHoldRows` for the memory store."""

    __slots__ = ("_holds", "_names", "_session")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._holds: Final = session.tables.key_holds
        self._names: Final = session.tables.names_of_holds

    async def held(self, names: Collection[KeyName]) -> dict[KeyName, KeyHold]:
        now = self._session.now
        found = {name: self._holds[name] for name in names if name in self._holds}
        return {name: hold for name, hold in found.items() if hold.until > now}

    async def take(self, kind: str, key: str, task_id: int, duration: int) -> bool:
        if not await self.is_free(kind, key, task_id):
            return False
        self._forget((kind, key))
        self._holds[kind, key] = KeyHold(kind, key, task_id, self._session.now + duration)
        self._names.setdefault(task_id, set()).add((kind, key))
        return True

    async def is_free(self, kind: str, key: str, task_id: int) -> bool:
        hold = (await self.held([(kind, key)])).get((kind, key))
        return hold is None or hold.task_id == task_id

    async def release(self, task_id: int) -> None:
        for name in list(self._names.get(task_id, ())):
            self._forget(name)

    async def prune(self, limit: int) -> None:
        now = self._session.now
        for name in list(islice((name for name, hold in self._holds.items() if hold.until <= now), limit)):
            self._forget(name)

    def _forget(self, name: KeyName) -> None:
        hold = self._holds.pop(name, None)
        if hold is not None:
            names = self._names[hold.task_id]
            names.discard(name)
            if not names:
                del self._names[hold.task_id]
