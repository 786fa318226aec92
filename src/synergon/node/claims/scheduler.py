"""The scheduler: the one loop of a node that claims after wake-ups.

It is level-triggered: it has a set of dirty kinds, which may have ready tasks, and one event. Adding to the set never
blocks. One claim is in flight at a time; the next claim handles the wake-ups that arrive meanwhile. There is no other
batching. A kind leaves the set when a claim found fewer tasks of it than were requested. Kinds with tasks that do not
fit return to the set when resources of the node become free.

Outcomes that free permits of limits, servers or key queues go to the store together with the next claim (`exchange`),
so that the next task starts with the commit that ends the previous one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from synergon.errors import StoreError, StoreUnavailable
from synergon.model.claims import Claim, ClaimRequest, Claims
from synergon.model.clock import Clock, SystemClock
from synergon.model.outcomes import FencedOutcome
from synergon.model.requirements import SLOT, is_unit
from synergon.node.attempts.completer import Completer
from synergon.node.capacity.acceptance import Acceptance
from synergon.node.claims.admission import Admission
from synergon.node.claims.shared_permits import SharedPermits
from synergon.node.metrics import Metrics
from synergon.node.signals import Signals
from synergon.stores.base import Store

DEFERRAL_SECONDS: Final = 0.02
"""How many seconds a node steps back from a contested limit: several times the duration of a hint and a claim."""


class Scheduler:
    """Claims when there may be ready tasks and there is capacity for them."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        kinds: Iterable[str],
        signals: Signals,
        *,
        completer: Completer | None = None,
        permits: SharedPermits | None = None,
        acceptance: Acceptance | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._admission = admission
        self._kinds = frozenset(kinds)
        self._signals = signals
        self._completer = completer
        self._permits = permits or SharedPermits({})
        self._deferred: set[str] = set()
        """Kinds that are not claimed in this round, because their permits are left to other nodes."""
        self._last_deferred: set[str] = set()
        """The kinds of the last round in which the node stepped back. Their next claim shows whether another node took
        the permit."""
        self._acceptance = acceptance or Acceptance()
        self._clock = clock or SystemClock()
        self._seen_releases = 0
        """The value of `Admission.release_count` when the last claim was sent."""
        self._has_surplus = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """For each kind that a rate defers, the timer that wakes it."""
        self.leftover: set[str] = set()
        """Kinds that may have more ready tasks than the last claim took."""
        self._dirty: set[str] = set(self._kinds)
        self._unfit: set[str] = set()
        """Kinds that may have ready tasks that do not fit now."""
        self._has_unfit = asyncio.Event()
        self._event = asyncio.Event()
        self._event.set()
        self.is_open: bool = True
        self.is_cordoned: bool = False
        """Whether the node is cordoned: it starts no task until `uncordon`."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_fenced: bool = False
        """Whether the node has lost its lease and has not joined again."""
        self._metrics = metrics or Metrics()
        self.choose_exchanged_kinds()

    @property
    def node_id(self) -> str:
        """The id under which the node claims."""
        return self._admission.node_id

    @node_id.setter
    def node_id(self, node_id: str) -> None:
        self._admission.node_id = node_id

    def wake(self, kinds: Iterable[str]) -> None:
        """Mark kinds as dirty: they may have ready tasks."""
        known = self._kinds.intersection(kinds)
        if known:
            if self._acceptance.is_needed:
                self._acceptance.note_new_candidates(known)
            self._mark_dirty(known)

    def claim_soon(self) -> None:
        """Wake the loop, because outcomes wait for the next claim."""
        self._event.set()

    def accepted(self, kind: str) -> None:
        """Mark a kind as dirty: `can_accept` has accepted a task of it, or must be called again."""
        self._mark_dirty({kind})

    def _mark_dirty(self, kinds: set[str] | frozenset[str]) -> None:
        if kinds:
            self._dirty |= kinds
            self._event.set()

    def wake_all(self) -> None:
        """Mark all kinds as dirty."""
        self.wake(self._kinds)

    def capacity_freed(self) -> None:
        """Note that capacity of the node has become free. Kinds whose tasks did not fit become dirty if a resource was
        freed."""
        if self._has_unfit.is_set() and self._admission.release_count != self._seen_releases:
            self.wake_unfit()
        if self._dirty:
            self._event.set()

    def wake_unfit(self) -> None:
        """Mark the kinds with tasks that did not fit as dirty: the tasks may fit now, or get a reservation."""
        self.wake(self._unfit)
        reserved = self._admission.reserved
        if reserved is not None:
            self.wake([reserved.kind])

    async def unfit_step(self) -> None:
        """Wait until there are tasks that do not fit, then for half of the patience, and mark their kinds as dirty: a
        task may have become old enough for a reservation, or the reserved task may be gone."""
        await self._has_unfit.wait()
        await self._clock.sleep(self._admission.patience_seconds / 2)
        self.wake_unfit()

    @property
    def may_claim(self) -> bool:
        """Whether the node may claim: it is open and not cordoned."""
        return self.is_open and not self.is_cordoned

    def cordon(self) -> None:
        """Claim nothing until `uncordon`, and drop the reservation."""
        self.is_cordoned = True
        self._admission.reserve_nothing()
        self.choose_exchanged_kinds()

    def uncordon(self) -> None:
        """Undo `cordon`: claim again, with all kinds dirty."""
        self.is_cordoned = False
        self.choose_exchanged_kinds()
        self.wake_all()

    def close(self) -> None:
        """Claim nothing more."""
        self.is_open = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.choose_exchanged_kinds()

    def fence(self) -> None:
        """Claim nothing more, because the lease is lost. Safe from any thread; `close` follows on the event loop."""
        self.is_fenced = True
        self.is_open = False

    def reopen(self) -> None:
        """Undo `close` and `fence`: claim again, with all kinds dirty."""
        self.is_open = True
        self.is_fenced = False
        self.choose_exchanged_kinds()
        self.wake_all()

    def choose_exchanged_kinds(self) -> None:
        """Decide which outcomes wait for the next claim: those of kinds that share permits. If the node may not claim,
        no outcome waits. Kinds with contested permits are left out, because a permit must be free before it is
        announced to other nodes."""
        self._admission.is_open = self.may_claim
        if self._completer is not None and self._permits.is_needed:
            kinds = self._permits.kinds if self.may_claim else frozenset()
            self._completer.exchange_kinds(kinds - self._permits.contested(kinds))

    def permits_freed(self, kinds: Iterable[str | None]) -> set[str]:
        """Note that tasks of these kinds have ended and freed their permits. Wakes the kinds that may take them.
        Returns the kinds for which this node steps back."""
        takers = self._permits.takers_after(kinds)
        contested = set(self._permits.contested(takers))
        if contested and not self._deferred and self._permits.should_defer():
            self._deferred = contested
            asyncio.get_running_loop().call_later(DEFERRAL_SECONDS, self._end_deferral)
        self.wake(takers)
        return contested & self._deferred

    def _end_deferral(self) -> None:
        self._last_deferred, self._deferred = self._deferred, set()
        self.wake(self._last_deferred)

    async def woken(self) -> None:
        """Wait until there is a reason to claim."""
        await self._event.wait()

    async def step(self) -> Sequence[Claim]:
        """Claim once for all dirty kinds. Returns the claimed tasks."""
        self._event.clear()
        if not self.may_claim:
            return ()
        outcomes = self._take_exchangeable(self._completer) if self._completer and self._permits.is_needed else []
        if self._acceptance.is_needed:
            self._dirty -= self._acceptance.begin(self._dirty)
        request = self._admission.request(self.node_id, self._dirty - self._deferred)
        if request is None:
            if outcomes and self._completer is not None:
                self._completer.not_exchanged()
            return ()
        if self._acceptance.is_needed:
            request = self._acceptance.narrowed(request)
        return await self._claim(request, outcomes)

    def _take_exchangeable(self, completer: Completer) -> list[FencedOutcome]:
        """The outcomes for this claim. Marks the kinds that may take their permits as dirty. These stay dirty until
        they are requested, because there may be no capacity for some of them now."""
        outcomes = completer.take_exchangeable()
        takers = self._permits.takers_after(outcome.kind for outcome in outcomes)
        self._acceptance.note_new_candidates(takers)
        self._dirty |= takers
        if completer.has_exchangeable:
            self._event.set()
        return outcomes

    def _has_capacity_for(self, kinds: set[str]) -> bool:
        return any(self._admission.free_count(kind) > 0 for kind in kinds)

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is in flight."""
        return not self._is_idle.is_set()

    def is_idle(self, kind: str | None) -> bool:
        """Whether the node knows of no ready task of `kind`; if `kind` is None, of no ready task of any kind that has
        capacity. False while the node may not claim, or a claim is in flight."""
        if not self.may_claim or self.is_claiming:
            return False
        if kind is not None:
            return kind not in self._dirty
        return not self._has_capacity_for(self._dirty)

    async def wait_until_idle(self) -> None:
        """Wait until no claim is in flight. After `close`, none follows."""
        await self._is_idle.wait()

    async def _claim(self, request: ClaimRequest, outcomes: list[FencedOutcome]) -> Claims:
        asked = {kind_request.kind for kind_request in request.kinds}
        self._dirty -= asked
        self._seen_releases = self._admission.release_count
        self._is_idle.clear()
        asked_at = self._clock.monotonic()
        try:
            claims = await (self._exchange(outcomes, request) if outcomes else self._store.claim(request))
        except BaseException:
            self._dirty |= asked
            self._event.set()
            raise
        finally:
            self._is_idle.set()
        if claims is None:
            self._mark_dirty(asked)
            return Claims()
        if claims.is_cordoned:  # so the node has learned nothing
            self._dirty |= asked
            self._signals.found_cordoned()
            return Claims()
        self._metrics.note_claim(self._clock.monotonic() - asked_at, len(claims))
        taken = Counter(claim.kind for claim in claims if not claim.is_member)
        if self._last_deferred:
            self._note_deferral(asked, taken)
        self._note_unfit(request, claims, taken)
        for kind, microseconds in claims.deferred.items():
            self._wake_later(kind, microseconds / 1_000_000)
        self._note_leftovers(request, claims, taken)
        if claims:
            self._signals.claimed(claims)
        return claims

    def _wake_later(self, kind: str, seconds: float) -> None:
        """Wake the kind when the rate that defers its tasks permits a start."""
        if kind in self._timers:
            self._timers[kind].cancel()
        self._timers[kind] = asyncio.get_running_loop().call_later(seconds, self.wake, (kind,))

    async def _exchange(self, outcomes: list[FencedOutcome], request: ClaimRequest) -> Claims | None:
        """Send the outcomes and the claim request in one call. Returns None if the store rejected the call; the
        completer then writes the outcomes."""
        assert self._completer is not None, "outcomes come from the completer"
        try:
            verdicts, claims = await self._store.exchange(outcomes, request)
        except BaseException as error:
            self._completer.not_exchanged()
            if isinstance(error, StoreError) and not isinstance(error, StoreUnavailable):
                return None
            raise
        self._permits.note_freed(verdict.kind for verdict in verdicts)
        self._completer.exchanged(verdicts)
        return claims

    def _note_unfit(self, request: ClaimRequest, claims: Claims, taken: Counter[str]) -> None:
        """Note the kinds that may have ready tasks that do not fit. They become dirty when capacity is free."""
        asked = {kind_request.kind for kind_request in request.kinds}
        users = {one.kind for one in request.kinds if one.bounds or not all(map(is_unit, one.requirements.cost))}
        maybe_more = {claim.kind for claim in claims if claim.requirements or claim.kind in users}
        self._unfit = (self._unfit - asked) | claims.unfit | maybe_more | _short_of_units(request, taken)
        # The request was sent before these resources were freed or the reservation was dropped.
        if self._admission.note(claims):
            # After a dropped reservation, any kind may use what was held for that task, permits of limits too.
            self._dirty |= self._kinds if claims.reserved is None else asked | self._unfit
        elif self._admission.release_count != self._seen_releases:
            self._dirty |= self._unfit
        if self._unfit or claims.reserved is not None:
            self._has_unfit.set()
        else:
            self._has_unfit.clear()

    def _note_deferral(self, asked: set[str], taken: Counter[str]) -> None:
        if not self._last_deferred.isdisjoint(asked):
            self._permits.note_deferral(was_unused=not self._last_deferred.isdisjoint(taken))
            self._last_deferred = set()

    def _note_leftovers(self, request: ClaimRequest, claims: Claims, taken: Counter[str]) -> None:
        """Keep the kinds dirty that may have more ready tasks, and announce them to other nodes once."""
        # The limit does not apply to commands, so a full node would request them for ever.
        slots_remaining = request.limit - sum(
            taken[kind_request.kind] for kind_request in request.kinds if not kind_request.is_command
        )
        yielding = request.yielding.get(SLOT, 0)
        leftover = {
            kind_request.kind
            for kind_request in request.kinds
            if taken[kind_request.kind] >= kind_request.count
            or (
                slots_remaining <= 0
                and not kind_request.is_command
                and not (slots_remaining + yielding > 0 and kind_request.is_yielded_to)
            )
        }
        more = leftover | claims.unfit | (_short_of_units(request, taken) if claims else set())
        # Announced once: from then on the other nodes that run these kinds claim by themselves.
        if more and not self._has_surplus:
            self._signals.surplus(more)
        self._has_surplus = bool(more)
        self.leftover = more
        self._dirty |= leftover | claims.more
        if self._acceptance.is_needed:
            self._dirty |= self._acceptance.claimed(request, claims, leftover)
        if self._dirty:  # more of these kinds, or of kinds that were not requested this time
            self._event.set()


def _short_of_units(request: ClaimRequest, taken: Mapping[str, int]) -> set[str]:
    """Kinds that may have more ready tasks than there were free child processes or threads."""
    in_use: Counter[str | None] = Counter()
    for kind_request in request.kinds:
        in_use[kind_request.executes_in] += taken[kind_request.kind]
    return {
        kind_request.kind
        for kind_request in request.kinds
        if (name := kind_request.executes_in) is not None and in_use[name] >= request.free_units(name)
    }
