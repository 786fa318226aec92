"""Queues in the memory store: implements `stores.session.QueueRows` over the store's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergon.stores import session as port

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class QueueRows(port.QueueRows):
    """Implements `stores.session.QueueRows` for the memory store."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session: Final = session

    async def pause(self, queue: str) -> bool:
        queues = self._session.tables.queues
        if queues.get(queue) is not None:
            return False
        queues[queue] = self._session.now
        return True

    async def resume(self, queue: str) -> bool:
        queues = self._session.tables.queues
        if queues.get(queue) is None:
            return False
        queues[queue] = None
        return True
