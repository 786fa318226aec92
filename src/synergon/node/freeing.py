"""What ends on this node frees places that kinds share: it wakes those that may take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from synergon.node.scheduler import Scheduler
from synergon.node.sharing import Sharing
from synergon.records import Settlement


class Freeing:
    """Between the completer and the scheduler."""

    def __init__(self, sharing: Sharing, scheduler: Callable[[], Scheduler], *, is_in_order: bool) -> None:
        self._sharing = sharing
        self._scheduler = scheduler
        self._is_in_order = is_in_order
        """Of two calls to the store the later one sees what the earlier one did."""

    def ended(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store knows."""
        self._scheduler().wake(self._sharing.freed(kinds))

    def leaving(self, batch: Iterable[Settlement]) -> None:
        """Where writes are done in order, the next claim may be asked for now, and share the commit of these."""
        if self._is_in_order and self._sharing.is_any:
            self._scheduler().wake(self._sharing.about_to_end(settlement.kind for settlement in batch))

    def written(self, kinds: Iterable[str | None]) -> None:
        """The store has their outcomes."""
        freed = self._sharing.freed(kinds)
        # A claim in flight came after these outcomes, and has seen what they freed; without one, somebody has to look.
        if not (self._is_in_order and self._scheduler().is_claiming):
            self._scheduler().wake(freed)

    def moment_passed(self) -> None:
        """The store's clock has reached a moment at which something may be possible that was not."""
        self._scheduler().wake(self._sharing.pooled)
