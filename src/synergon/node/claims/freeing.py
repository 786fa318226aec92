"""What ends on this node frees places that kinds share: it wakes those that may take them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from synergon.errors import StoreError
from synergon.model.claims import Claim, ClaimRequest, Claims
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.node.claims.scheduler import Scheduler
from synergon.node.claims.shared_kinds import SharedKinds
from synergon.node.liveness.lost_claims import LostClaims
from synergon.stores.base import Store

CLAIM_PATIENCE_SECONDS: Final = 0.02
"""For so long outcomes wait for a claim in flight, to go along with one of their own: it saves more than that."""


class Passed(NamedTuple):
    """What has become of places that were to be passed on."""

    verdicts: list[Verdict]
    """Of those that have ended so; the others are to be finished."""
    kinds: list[str | None]
    """Of those that have left their places to somebody, here or elsewhere."""
    is_taken: bool
    """By this node."""


class Freeing:
    """Between the completer and the scheduler. Where the store can do so, a place is passed on to the next task with
    the commit that ends the one before."""

    def __init__(
        self,
        store: Store,
        sharing: SharedKinds,
        scheduler: Callable[[], Scheduler],
        strays: Callable[[], LostClaims],
        *,
        has_strangers: Callable[[str | None], bool] = lambda _: False,
        tell: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._sharing = sharing
        self._scheduler = scheduler
        self._strays = strays
        self._has_strangers = has_strangers
        """Whether a place that a task of this kind leaves may be wanted by kinds that only other nodes run."""
        self._tell = tell
        self._is_in_order = store.capabilities.in_order
        self._passes_on = store.capabilities.passes_on and sharing.is_any
        self._passed_on: Counter[str | None] = Counter()
        """How many tasks of each kind have left their place to somebody, here or elsewhere: it is not free."""

    def ended(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store knows."""
        self._scheduler().wake(self._sharing.freed(kinds))

    def leaving(self, batch: Iterable[FencedOutcome]) -> None:
        """Where writes are done in order, the next claim may be asked for now, and share the commit of these."""
        if self._is_in_order and self._sharing.is_any:
            self._scheduler().wake(self._sharing.about_to_end(settlement.kind for settlement in batch))

    async def finish(self, batch: list[FencedOutcome]) -> list[Verdict]:
        """Have outcomes written; the places may be passed on."""
        takers = self._takers(batch)
        if not takers:
            return await self._store.finish(batch)
        pass_on = self._pass_on if len(batch) == 1 else self._pass_all_on
        try:
            passed = await pass_on(batch, takers)
        except StoreError:
            self._strays().doubt()
            raise
        verdicts = await self._finish_rest(batch, passed.verdicts)
        # Not before: if the rest is written again, nobody has heard what these verdicts say, and all have to be woken.
        self._passed_on.update(passed.kinds)
        kind = batch[0].kind
        # It may be left to them; if not, they look while this node does.
        if not passed.is_taken and self._has_strangers(kind):
            self._tell(self._sharing.places(kind))
        return verdicts

    async def _finish_rest(self, batch: list[FencedOutcome], settled: list[Verdict]) -> list[Verdict]:
        """The verdicts of all. Where some are settled, none is there twice."""
        if not settled:
            return await self._store.finish(batch)
        verdicts = {verdict.id: verdict for verdict in settled}
        if rest := [entry for entry in batch if entry.id not in verdicts]:
            verdicts.update((verdict.id, verdict) for verdict in await self._store.finish(rest))
        return [verdicts[entry.id] for entry in batch]

    def _takers(self, batch: list[FencedOutcome]) -> set[str]:
        """The kinds that may take the places; of many tasks, only places in the lines of one kind."""
        if not self._passes_on or self._strays().is_in_doubt:
            return set()
        if len(batch) == 1:
            return self._sharing.heirs(batch[0].kind)
        kinds = {entry.kind for entry in batch if entry.kind is not None and entry.limit_key is not None}
        return kinds if len(kinds) == 1 and self._sharing.about_to_end(kinds) == kinds else set()

    async def _pass_on(self, batch: list[FencedOutcome], takers: set[str]) -> Passed:
        """The place of a single task."""
        (ending,) = batch
        verdicts: list[Verdict] = []
        taken: list[Claim] = []

        async def ask(request: ClaimRequest) -> Claims | None:
            verdict, claims = await self._store.pass_on(ending, request)
            verdicts.append(verdict)
            taken.extend(claims or ())
            return claims

        beside = self._sharing.about_to_end([ending.kind]) - takers
        is_passed_on = await self._scheduler().claim_along(takers, ask, beside=beside)
        return Passed(verdicts, [ending.kind] if is_passed_on else [], bool(taken))

    async def _pass_all_on(self, batch: list[FencedOutcome], takers: set[str]) -> Passed:
        """The places of many in their lines. Nobody waits for what is left of those that are passed on, unless a
        verdict says so."""
        verdicts: list[Verdict] = []

        async def ask(request: ClaimRequest) -> Claims | None:
            passed = await self._store.pass_all_on(batch, request)
            if passed is None:
                return None
            verdicts.extend(passed[0])
            return passed[1]

        await self._scheduler().claim_is_over(CLAIM_PATIENCE_SECONDS)
        await self._scheduler().claim_along(takers, ask)
        return Passed(verdicts, [verdict.kind for verdict in verdicts if verdict.kind in takers], bool(verdicts))

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
