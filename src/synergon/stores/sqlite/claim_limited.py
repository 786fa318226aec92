"""The claim where more than slots decides: requirements, limits, servers, rates, commands.

The write lock is held, so what is counted here stays true until the commit. What a task holds is written into its row
when it is taken, and nowhere else: usage is the number of running rows that name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, Claims, KindRequest
from synergon.stores.rules.claim_plan import ClaimPlan, ReadyTask
from synergon.stores.rules.node_capacity import Fit, NodeCapacity, claim_order, may_reserve, requirements_of
from synergon.stores.rules.shared_capacity import Grant, HeldPermits, SharedCapacity
from synergon.stores.sqlite import reservations, servers
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.key_queues import charge_starts
from synergon.stores.sqlite.limits import split
from synergon.stores.sqlite.ready_groups import (
    KIND,
    LIMIT_KEY,
    PRIORITY,
    ReadyGroup,
    ReadyGroups,
    ready_task,
    target_of,
)
from synergon.stores.sqlite.transaction import Transaction, as_json

LOOKED_AT: Final = 1000
"""Tasks that are for certain servers: behind one that cannot run now there may be one that can."""


class TakenRow(NamedTuple):
    """A row that is taken, and the permits that it holds."""

    row: tuple[Any, ...]
    grant: Grant


def take(
    transaction: Transaction,
    request: ClaimRequest,
    ready_groups: ReadyGroups,
    found: Sequence[ReadyGroup],
    claims: Claims,
) -> list[TakenRow]:
    """Take the first ready tasks in order that the node can carry and that have a place in everything they need; beside
    that `claims` is told what it has to know."""
    kind_requests = _kind_requests(request, found)
    allotment = _allotment(transaction, kind_requests)
    candidates = _Candidates(request, ready_groups, allotment).of(found)
    reservations.hold_permits(transaction, request, allotment)
    plan = ClaimPlan(request, allotment)
    taken = []
    for row in candidates:
        grant = plan.offer(_ready_task(transaction, request, row))
        if grant is not None:
            taken.append(TakenRow(row, grant))
    if taken:
        transaction.run(
            "take_permits", request.node_id, transaction.now, as_json(_permit_row(entry) for entry in taken)
        )
        _charge(transaction, request, taken)
    claims.unfit = plan.unfit
    if plan.reserved is not None:
        claims.reserved = reservations.reserve(transaction, request, plan.reserved)
    else:
        claims.reserved = reservations.renew(transaction, request, allotment)
    return taken


def _ready_task(transaction: Transaction, request: ClaimRequest, row: tuple[Any, ...]) -> ReadyTask:
    return ready_task(row, may_reserve=reservations.may_be_reserved(transaction, request, row))


def _kind_requests(request: ClaimRequest, found: Sequence[ReadyGroup]) -> list[KindRequest]:
    """Those of which something might be taken, and that of the task that room is kept for."""
    only_looked_at = [
        kind_request for kind_request in request.kinds if kind_request.count <= 0 and request.reserved_task is not None
    ]
    return [ready_group.kind_request for ready_group in found] + only_looked_at


def _allotment(transaction: Transaction, kind_requests: Sequence[KindRequest]) -> SharedCapacity:
    providers = {kind_request.provider for kind_request in kind_requests if kind_request.provider is not None}
    if not providers and not any(kind_request.limits for kind_request in kind_requests):
        return SharedCapacity({}, (), ())  # rates, commands and demands alone: nothing has to be counted
    held_permits = [HeldPermits(split(row[0]), *row[1:]) for row in transaction.rows("held_permits")]
    return SharedCapacity(dict(transaction.rows("limit_values")), servers.pool(transaction, providers), held_permits)


def _commands(ready_groups: ReadyGroups, ready_group: ReadyGroup, allotment: SharedCapacity, limit: int) -> list[Any]:
    """Those for servers that have no room are left out: however many they are, they hide nobody."""
    if ready_group.kind_request.provider is None:
        return ready_groups.first(ready_group, limit)
    servers = allotment.open_servers(ready_group.kind_request.provider)
    return ready_groups.commands_for(ready_group, servers, limit) if servers else []


class _Candidates:
    """Enough rows of each lane to fill the node, and one more that it might keep room for."""

    def __init__(self, request: ClaimRequest, ready_groups: ReadyGroups, allotment: SharedCapacity) -> None:
        self._request = request
        self._ready_groups = ready_groups
        self._allotment = allotment
        # What is held for a task is free again when that one is taken, so that more may follow it.
        self._scales = NodeCapacity(replace(request, held={}))

    def of(self, found: Sequence[ReadyGroup]) -> list[Any]:
        kind_requests = {kind_request.kind: kind_request for kind_request in self._request.kinds}
        lists = [
            rows
            for ready_group in found
            if ready_group.kind_request.only is None and (rows := self._of_ready_group(ready_group))
        ]
        named = self._named(kind_requests)
        if len(lists) == 1 and not named:
            return lists[0]
        reserved_task = self._request.reserved_task
        by_id = {row[0]: row for row in chain(*lists, named)}
        return sorted(
            by_id.values(), key=lambda row: claim_order(kind_requests[row[KIND]], row[PRIORITY], row[0], reserved_task)
        )

    def _named(self, kind_requests: Mapping[str, KindRequest]) -> list[Any]:
        """Those that rooms name, and the one that room is kept for, if its own room does not leave it out."""
        only = {
            kind_request.kind: frozenset(kind_request.only)
            for kind_request in kind_requests.values()
            if kind_request.only is not None
        }
        reserved_task = [] if self._request.reserved_task is None else [self._request.reserved_task]
        named = [*chain.from_iterable(only.values()), *reserved_task]
        rows = self._ready_groups.among(kind_requests, named) if named else []
        return [row for row in rows if row[0] in only.get(row[KIND], reserved_task)]

    def _of_ready_group(self, ready_group: ReadyGroup) -> list[Any]:
        kind_request, requirements = (
            ready_group.kind_request,
            requirements_of(ready_group.kind_request, ready_group.requirements),
        )
        if self._scales.fit(kind_request, requirements) is Fit.NEVER:
            return []
        if kind_request.is_command:
            return _commands(self._ready_groups, ready_group, self._allotment, LOOKED_AT)
        most = min(self._allotment.most(kind_request), self._scales.slots(kind_request) + may_reserve(self._request))
        return (
            self._first(ready_group, min(most, self._scales.most(kind_request, requirements) + 1)) if most > 0 else []
        )

    def _first(self, ready_group: ReadyGroup, most: int) -> list[Any]:
        """If there is none among them that wants a certain server, any place suits the first."""
        rows = self._ready_groups.first(ready_group, most)
        wants_server = ready_group.kind_request.provider is not None and len(rows) == most and any(map(target_of, rows))
        return self._ready_groups.first(ready_group, max(most, LOOKED_AT)) if wants_server else rows


def _permit_row(taken: TakenRow) -> tuple[Any, ...]:
    limits, provider, server, slot = taken.grant
    holds = "\n".join(limits) if limits or provider is not None else None
    return taken.row[0], holds, provider, server, slot


def _charge(transaction: Transaction, request: ClaimRequest, taken: list[TakenRow]) -> None:
    rated = {kind_request.kind for kind_request in request.kinds if kind_request.is_rated}
    started = Counter(
        (row[KIND], row[LIMIT_KEY]) for row, _ in taken if row[KIND] in rated and row[LIMIT_KEY] is not None
    )
    if started:
        charge_starts(transaction, started)
        draw(transaction)
