"""The one decision loop: wake-ups in, claims out.

Level-triggered: a set of kinds that may have ready tasks, and one event. Adding to the set never blocks. One claim is
in flight at a time, and what arrives meanwhile is taken by the next, which is all the batching there is. A kind leaves
the set when a claim with room for more found no more of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from synergon.node.admission import Admission
from synergon.records import Claim, ClaimRequest
from synergon.stores.base import Store


class Scheduler:
    """Claims whenever there may be work and there is room for it."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        kinds: Iterable[str],
        start: Callable[[list[Claim]], None],
        *,
        on_surplus: Callable[[Iterable[str]], None] = lambda _: None,
        on_cordoned: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._admission = admission
        self._kinds = frozenset(kinds)
        self._start = start
        self._on_surplus = on_surplus
        self._on_cordoned = on_cordoned
        self._has_surplus = False
        self.leftover: set[str] = set()
        """Kinds of which the last claim may have left some."""
        self._dirty: set[str] = set(self._kinds)
        self._event = asyncio.Event()
        self._event.set()
        self.is_open = True
        self.is_cordoned = False
        """It is to start nothing new, until somebody says otherwise."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.node_id = ""
        self.last_claim_at: float | None = None

    def wake(self, kinds: Iterable[str]) -> None:
        """There may be ready tasks of these kinds."""
        known = self._kinds.intersection(kinds)
        if known:
            self._dirty |= known
            self._event.set()

    def wake_all(self) -> None:
        """There may be ready tasks of any kind."""
        self.wake(self._kinds)

    def capacity_freed(self) -> None:
        """There is room again."""
        if self._dirty:
            self._event.set()

    @property
    def may_claim(self) -> bool:
        """Whether anything new may start."""
        return self.is_open and not self.is_cordoned

    def cordon(self) -> None:
        """Claim nothing until `uncordon`."""
        self.is_cordoned = True

    def uncordon(self) -> None:
        """Claim again."""
        self.is_cordoned = False
        self.wake_all()

    def close(self) -> None:
        """Claim nothing more."""
        self.is_open = False

    def reopen(self) -> None:
        """Claim again, from the beginning."""
        self.is_open = True
        self.wake_all()

    async def woken(self) -> None:
        """Return once there is a reason to claim."""
        await self._event.wait()

    async def step(self) -> None:
        """Claim once, for every reason there was."""
        self._event.clear()
        request = self._admission.request(self.node_id, self._dirty) if self.may_claim else None
        if request is not None:
            await self._claim(request)

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is in flight."""
        return not self._is_idle.is_set()

    def is_at_rest(self, kind: str | None) -> bool:
        """Whether the last claim has left nothing to run; of this kind, if one is given."""
        if not self.may_claim or self.is_claiming:
            return False
        return kind not in self._dirty if kind is not None else not self._dirty

    async def settled(self) -> None:
        """Return once no claim is in flight; to be called after `close`."""
        await self._is_idle.wait()

    async def _claim(self, request: ClaimRequest) -> None:
        asked = {room.kind for room in request.rooms}
        self._dirty -= asked
        self._is_idle.clear()
        try:
            claims = await self._store.claim(request)
        except BaseException:
            self._dirty |= asked
            self._event.set()
            raise
        finally:
            self._is_idle.set()
        if claims.is_cordoned:  # so it knows no more than before
            self._dirty |= asked
            self._on_cordoned()
            return
        self._note_leftovers(request, claims)
        if claims:
            self._start(claims)

    def _note_leftovers(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """Kinds of which there may be more stay dirty; they are asked for when there is room again."""
        taken = Counter(claim.kind for claim in claims)
        # Commands do not count for the limit, nor does it hold them back: a full node would ask for them for ever.
        commands = {room.kind for room in request.rooms if room.is_command}
        is_full = sum(claim.kind not in commands for claim in claims) >= request.limit
        leftover = {
            room.kind for room in request.rooms if taken[room.kind] >= room.count or (is_full and not room.is_command)
        }
        # Said once, when it begins: whoever else runs these kinds goes on looking by itself from then on.
        if leftover and not self._has_surplus:
            self._on_surplus(leftover)
        self._has_surplus = bool(leftover)
        self.leftover = leftover
        self._dirty |= leftover
        if self._dirty:  # of these, or of kinds that were not asked for this time
            self._event.set()
