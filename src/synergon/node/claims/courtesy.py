"""Places are left to better tasks that only other nodes could take; for a moment, and not again and again in vain.

The claim decides to which tasks (`Claims.left`). Whoever could take them is told, and takes them within the moment; if
nobody does (it is full, it hangs, its news is old), the next claim leaves them nothing any more, and for many times as
long as was lost places are left to nobody. So what is lost is a small part of the time, whatever others do.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims
from synergon.model.node_status import KindStatus
from synergon.model.nodes import NodeRecord
from synergon.node.claims.rivals import heeded, looks_of, shared_by
from synergon.node.claims.shared_kinds import pool_name

MOMENT_SECONDS: Final = 0.2
"""For so long a place is left to a task: many times what it takes to tell another node, and for that to claim."""

SWEEP_SECONDS: Final = 1.25
"""The same where there is reason to believe that news does not arrive: others look by themselves every second."""

REST_PARTS: Final = 10
"""If a place was left in vain, none is left for so many times as long. So no more than a tenth of the time is lost, and
whoever comes later does not wait for long."""

KIND_REST_PARTS: Final = 20
"""The same for the kind of the task for which nobody came: others have their turn before it is tried again."""


class Left(NamedTuple):
    """A task to which a place is left."""

    kind: str
    since: float
    shared: frozenset[str]
    """What it takes places in."""


class Courtesy:
    """Knows whom a claim may leave places to, and for how long."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        is_heard: Callable[[], bool] = lambda: True,
        on_left: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self._now = now
        self._is_heard = is_heard
        """Whether there is reason to believe that others hear what they are told."""
        self._on_left = on_left
        self._looks: tuple[CandidateQuery, ...] = ()
        self._left: dict[int, Left] = {}
        self._told_past: frozenset[int] = frozenset()
        """What the request that is under way says of those who have had their time."""
        self._rests: dict[str, float] = {}
        """Until when these kinds are left nothing."""
        self._rests_until = -math.inf
        """The same for all."""
        self._is_leaving = asyncio.Event()

    def meet(self, others: Iterable[NodeRecord], own: Mapping[str, KindStatus]) -> None:
        """Other nodes, as their rows say; these are the kinds of this one."""
        self._looks = looks_of(others, own)

    def heeding(
        self, request: ClaimRequest, own: Mapping[str, KindStatus], has_room: Callable[[str], bool]
    ) -> ClaimRequest:
        """The same request, so that it leaves places to others."""
        self._told_past = frozenset()
        rivals = heeded(self._looks, request, own, has_room=has_room, unheeded=self.unheeded) if self._looks else ()
        shared = {name for room in request.kinds for name in shared_by(room)}
        if not rivals:  # nobody is waited for any more who wants places in the same
            self._left = {task_id: left for task_id, left in self._left.items() if left.shared.isdisjoint(shared)}
            return request
        past = self.past  # of the others, who asks for something else learns nothing
        self._told_past = frozenset(task_id for task_id in past if not shared.isdisjoint(self._left[task_id].shared))
        return replace(request, rivals=rivals, past=self._told_past)

    def heeds_strangers(self, said: KindStatus, own: Container[str]) -> bool:
        """Whether kinds of others that are not among ours, and to which places are left now, may want one that tasks of
        this kind take."""
        shared, unheeded = shared_by(said), self.unheeded
        rooms = [look.room for look in self._looks if look.room.kind not in own]
        return any(room.kind not in unheeded and not shared.isdisjoint(shared_by(room)) for room in rooms)

    def note(self, claims: Claims) -> None:
        """To whom a claim has left places, and who has not come for them."""
        in_vain = claims.unserved if self._is_heard() else self._told_past
        for task_id in in_vain & self._left.keys():
            self._rest(self._left[task_id].kind)
        for task_id in self._told_past:
            self._left.pop(task_id, None)
        self._told_past = frozenset()
        news = {kind for task_id, kind in claims.left if task_id not in self._left}
        for task_id, kind in claims.left:
            self._left.setdefault(task_id, Left(kind, self._now(), self._shared_by(kind)))
        if news:
            self._on_left(sorted({name for look in self._looks if look.room.kind in news for name in _names(look)}))
        if self._left.keys() - self.past:  # the others wait for a request that concerns them
            self._is_leaving.set()

    def _shared_by(self, kind: str) -> frozenset[str]:
        return frozenset(name for look in self._looks if look.room.kind == kind for name in shared_by(look.room))

    def _rest(self, kind: str) -> None:
        now = self._now()
        self._rests[kind] = now + KIND_REST_PARTS * self._moment
        self._rests_until = now + REST_PARTS * self._moment

    async def moment(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Return when a place has been left to somebody for long enough: then it is time to look again."""
        await self._is_leaving.wait()
        self._is_leaving.clear()
        past = self.past
        since = min((left.since for task_id, left in self._left.items() if task_id not in past), default=-math.inf)
        await sleep(max(since + self._moment - self._now(), 0.0))

    @property
    def unheeded(self) -> dict[str, float]:
        """Kinds of others to which no places are left, and for how many seconds."""
        now = self._now()
        kinds = {look.room.kind for look in self._looks}
        until = {kind: max(rest, self._rests_until) for kind, rest in self._rests.items()}
        left = {kind: until.get(kind, self._rests_until) - now for kind in kinds}
        return {kind: seconds for kind, seconds in left.items() if seconds > 0}

    @property
    def past(self) -> frozenset[int]:
        """The tasks to which a place was left for long enough."""
        if not self._left:
            return frozenset()
        before = self._now() - self._moment
        return frozenset(task_id for task_id, left in self._left.items() if left.since <= before)

    @property
    def _moment(self) -> float:
        return MOMENT_SECONDS if self._is_heard() else SWEEP_SECONDS


def _names(look: CandidateQuery) -> list[str]:
    """What a task takes places in, as others are told."""
    pool = [] if look.room.provider is None else [pool_name(look.room.provider)]
    return [*look.room.limits, *pool]
