"""Queues in the memory store: implements `stores.session.QueueRows` over the store's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class QueueRows:
    """Implements `stores.session.QueueRows` for the memory store."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session: Final = session

    async def pause(self, queue: str) -> bool:
        """Pause a queue, and insert it if it is new. False if it was paused already."""
        queues = self._session.tables.queues
        if queues.get(queue) is not None:
            return False
        queues[queue] = self._session.now
        return True

    async def resume(self, queue: str) -> bool:
        """Resume a queue. False if it was not paused, or does not exist."""
        queues = self._session.tables.queues
        if queues.get(queue) is None:
            return False
        queues[queue] = None
        return True
