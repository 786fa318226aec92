"""What ends on this node frees places that kinds share: it wakes those that may take them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from synergon.errors import StoreUnavailable
from synergon.node.scheduler import Scheduler
from synergon.node.sharing import Sharing
from synergon.node.strays import Strays
from synergon.records import ClaimRequest, Claims, Settlement, Verdict
from synergon.stores.base import Store


class Freeing:
    """Between the completer and the scheduler. Where the store can do so, a place is passed on to the next task with
    the commit that ends the one before."""

    def __init__(
        self, store: Store, sharing: Sharing, scheduler: Callable[[], Scheduler], strays: Callable[[], Strays]
    ) -> None:
        self._store = store
        self._sharing = sharing
        self._scheduler = scheduler
        self._strays = strays
        self._is_in_order = store.capabilities.in_order
        self._passes_on = store.capabilities.passes_on and sharing.is_any
        self._passed_on: Counter[str | None] = Counter()
        """How many tasks of each kind have left their place to somebody, and are not free to be taken."""

    def ended(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store knows."""
        self._scheduler().wake(self._sharing.freed(kinds))

    def leaving(self, batch: Iterable[Settlement]) -> None:
        """Where writes are done in order, the next claim may be asked for now, and share the commit of these."""
        if self._is_in_order and self._sharing.is_any:
            self._scheduler().wake(self._sharing.about_to_end(settlement.kind for settlement in batch))

    async def finish(self, batch: list[Settlement]) -> list[Verdict]:
        """Have outcomes written; the places may be passed on."""
        takers = self._takers(batch)
        verdicts: list[Verdict] = []

        async def pass_on(request: ClaimRequest) -> Claims | None:
            verdict, claims = await self._store.pass_on(batch[0], request)
            verdicts.append(verdict)
            return claims

        async def pass_all_on(request: ClaimRequest) -> Claims | None:
            passed = await self._store.pass_all_on(batch, request)
            if passed is None:
                return None
            verdicts.extend(passed[0])
            # Nobody waits for what is left of their places, unless a verdict says so.
            self._passed_on.update(entry.kind for entry in batch if entry.kind in takers)
            return passed[1]

        if takers:
            try:
                if len(batch) > 1:
                    await self._scheduler().claim_is_over()  # it costs less than a claim of its own afterwards
                    await self._scheduler().claim_along(takers, pass_all_on)
                elif await self._scheduler().claim_along(takers, pass_on):
                    self._passed_on[batch[0].kind] += 1
            except StoreUnavailable:
                self._strays().doubt()
                raise
        return verdicts or await self._store.finish(batch)

    def _takers(self, batch: list[Settlement]) -> set[str]:
        """The kinds that may take the places; of many tasks, only places in the lines of one kind."""
        if not self._passes_on or self._strays().is_in_doubt:
            return set()
        if len(batch) == 1:
            return self._sharing.heirs(batch[0].kind)
        kinds = {entry.kind for entry in batch if entry.kind is not None and entry.limit_key is not None}
        return kinds if len(kinds) == 1 and self._sharing.about_to_end(kinds) == kinds else set()

    def written(self, kinds: Iterable[str | None]) -> None:
        """The store has their outcomes."""
        if self._passed_on:
            kinds, self._passed_on = (Counter(kinds) - self._passed_on).elements(), Counter()
        freed = self._sharing.freed(kinds)
        # A claim in flight came after these outcomes, and has seen what they freed; without one, somebody has to look.
        if not (self._is_in_order and self._scheduler().is_claiming):
            self._scheduler().wake(freed)

    def moment_passed(self) -> None:
        """The store's clock has reached a moment at which something may be possible that was not."""
        self._scheduler().wake(self._sharing.pooled)
