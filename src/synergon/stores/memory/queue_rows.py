"""Queues in the memory store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class QueueRows:
    """`stores.session.QueueRows`."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session: Final = session

    async def pause(self, queue: str) -> bool:
        """Close a queue."""
        queues = self._session.tables.queues
        if queues.get(queue) is not None:
            return False
        queues[queue] = self._session.now
        return True

    async def resume(self, queue: str) -> bool:
        """Open a queue."""
        queues = self._session.tables.queues
        if queues.get(queue) is None:
            return False
        queues[queue] = None
        return True
