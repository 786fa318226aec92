"""The claim where limits, servers, rates, commands or demands have a say: a transaction of a few steps.

The rows of the limits and servers that apply are locked first, then what running tasks hold is counted by later
statements, so it stays true until the commit. What a task holds is written into its row when it is taken, and nowhere
else: usage is the number of running rows that name it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from synergon.model.claims import ClaimRequest, Claims, KindRequest, ReservedTask
from synergon.stores.contention import Contention, RowHeld
from synergon.stores.postgres import servers
from synergon.stores.postgres.choice import (
    ReadyGroupName,
    fits_now,
    most_by_weight,
    most_to_read,
    ready_task,
    rest_of,
)
from synergon.stores.postgres.claim_fast import Run, in_order, queues_of, shut_out
from synergon.stores.postgres.commands import ready_commands
from synergon.stores.postgres.follow_ups import draw
from synergon.stores.postgres.key_queues import charge_starts
from synergon.stores.postgres.limits import split
from synergon.stores.postgres.lock_order import OF_KEY_QUEUES, terms_of
from synergon.stores.postgres.prefix_limits import Covering, above, limits_above, providers_of
from synergon.stores.postgres.ready_groups import ReadyGroups
from synergon.stores.postgres.session import LockedPermits, Session, Terms
from synergon.stores.rules.claim_plan import ClaimPlan, ReadyTask, Taken, server_to_avoid
from synergon.stores.rules.node_capacity import NodeCapacity, requirements_of
from synergon.stores.rules.shared_capacity import Grant, HeldPermits, SharedCapacity

LOOKED_AT: Final = 1000
"""Tasks that are for certain servers: behind one that cannot run now there may be one that can."""
FEW: Final = 8
"""So many of a lane are looked at while it is counted how many may be taken."""
LOOKS: Final = 8
PATIENT_LOOKS: Final = 3
MOST_PROBES: Final = 64
PAUSE_SECONDS: Final = 0.01


class Taking(NamedTuple):
    """What a claim has done."""

    rows: list[Any]
    reserved: ReservedTask | None = None
    is_cordoned: bool = False
    unfit: frozenset[str] = frozenset()


async def claim_with_permits(
    write: Run, statement: Run, request: ClaimRequest, ready_groups: ReadyGroups, covering: Covering
) -> Claims:
    """Take the first ready tasks in order that have a place in everything they need; commands before all else.

    `write` makes a transaction of a piece of work, `statement` one of a single statement. Where a row that somebody
    holds is an error, it is looked again, and in the end without those rows. `covering` is what was seen before.
    """
    held: set[int] = set()
    for number in range(LOOKS):
        wanted: list[int] = []
        try:
            taking: Taking = await write(take, request, ready_groups, covering, held, wanted)
        except RowHeld:
            await asyncio.sleep(PAUSE_SECONDS * random.random())
            if number >= PATIENT_LOOKS:
                held |= await _find_held(statement, wanted)
        else:
            claims = in_order(request.kinds, taking.rows, request.reserved_task)
            claims.reserved, claims.is_cordoned, claims.unfit = taking.reserved, taking.is_cordoned, taking.unfit
            return claims
    return Claims()


async def _find_held(statement: Run, ids: Sequence[int]) -> set[int]:
    held: set[int] = set()
    for task_id in ids[:MOST_PROBES]:
        try:
            await statement(_probe, task_id)
        except RowHeld:
            held.add(task_id)
    return held


async def _probe(session: Session, task_id: int) -> None:
    await session.rows("lock_ready", task_id)


async def take(
    session: Session,
    asked: ClaimRequest,
    ready_groups: ReadyGroups,
    covering: Covering,
    held: set[int],
    wanted: list[int],
) -> Taking:
    """One claim. Rows that others were quicker to take are passed over, and it is chosen again among the rest.

    `wanted` tells what it tried to take last, should that be refused.
    """
    request = ready_groups.rest(asked)
    values, servers = session.locked_permits or await lock(session, request.kinds, covering)
    rows: list[Any] = []
    reserved: ReservedTask | None = None
    unfit: set[str] = set()
    passed_over = set(held)
    for _ in range(LOOKS):
        rest = rest_of(request, rows)
        sight = await _sight(session, rest, ready_groups, passed_over, is_counted=bool(servers or values))
        shared = SharedCapacity(values, servers, sight.held_permits)
        plan = ClaimPlan(rest, shared)
        for task in sorted(await _candidates(session, plan, sight, passed_over), key=plan.order):
            plan.offer(task)
        unfit |= plan.unfit | sight.unfit
        wanted[:] = [entry.task.id for entry in plan.taken]
        taken = await _sit(session, request.node_id, plan.taken)
        rows += taken
        lost = set(wanted) - {row["id"] for row in taken}
        if lost and not taken and (rejected := await _rejected(session, request.node_id)):
            return rejected
        if not lost and plan.reserved is not None:
            wanted[:] = [plan.reserved.id]
            row = await _reserve(session, asked, plan.reserved.id, plan.reserved.requirements)
            reserved = row and _reserved_task(asked, row)
            lost = set() if reserved is not None else set(wanted)
        if not lost:
            break
        passed_over |= lost
    await _charge(session, request, rows)
    if (
        asked.reserved_task is not None
        and all(row["id"] != asked.reserved_task for row in rows)
        and asked.reserved_task not in held
    ):
        wanted[:] = [asked.reserved_task]
        reserved = await _renew_reservation(session, asked, asked.reserved_task, shared)
    return Taking(rows, reserved, unfit=frozenset(unfit))


async def _rejected(session: Session, node_id: str) -> Taking | None:
    """Nothing could be taken, perhaps because the node itself may not."""
    is_cordoned = await session.value("lease", node_id)
    if is_cordoned or is_cordoned is None:
        shut_out(node_id, is_leased=is_cordoned is not None)
        return Taking([], is_cordoned=True)
    return None


async def _reserve(session: Session, request: ClaimRequest, task_id: int, requirements: str | None) -> Any:
    """Room is kept for it from now on, unless it is gone, or another node does so: then there is no row."""
    kinds = [kind_request.kind for kind_request in request.kinds]
    return await session.row(
        "reserve", task_id, request.node_id, request.reserve_microseconds, requirements, kinds, queues_of(request)
    )


async def _renew_reservation(
    session: Session, request: ClaimRequest, task_id: int, allotment: SharedCapacity
) -> ReservedTask | None:
    """Room is kept for the same task as before, or it is let go of, if that could not start anyway."""
    row = await _reserve(session, request, task_id, None) if request.reserve_microseconds > 0 else None
    if row is not None and allotment.take(_kind_request_of(request, row), _permit_seeker(row)) is not None:
        return _reserved_task(request, row)
    await session.rows("let_go", task_id, request.node_id)
    return None


def _permit_seeker(row: Any) -> ReadyTask:
    avoid = server_to_avoid(row["server"], row["attempts"])
    return ReadyTask(row["id"], row["priority"], row["kind"], target=row["target"], avoid=avoid)


def _reserved_task(request: ClaimRequest, row: Any) -> ReservedTask:
    return ReservedTask(
        id=row["id"],
        kind=row["kind"],
        requirements=requirements_of(_kind_request_of(request, row), row["requirements"]),
    )


def _kind_request_of(request: ClaimRequest, row: Any) -> KindRequest:
    return next(kind_request for kind_request in request.kinds if kind_request.kind == row["kind"])


# ---------------------------------------------------------------- what is locked and counted


async def lock(
    session: Session, kind_requests: Collection[KindRequest], covering: Covering, keyed_kinds: Collection[str] = ()
) -> LockedPermits:
    """Lock the limits and servers that these kinds need permits of, and the key queues of `keyed_kinds`."""
    providers = providers_of(kind_requests)
    names = {name for kind_request in kind_requests for name in kind_request.limits} | await limits_above(
        session, providers, covering
    )
    rated = {kind_request.kind for kind_request in kind_requests if kind_request.is_rated}
    wanted = names | {OF_KEY_QUEUES + kind for kind in (*rated, *keyed_kinds)}
    rows = await session.rows("lock_limits", sorted(wanted)) if wanted else []
    session.terms.update(dict.fromkeys(rated, Terms()) | terms_of(rows))
    found = await servers.lock_pools(session, providers) if providers else servers.Pools([], [])
    covering[providers] = above(found.prefixes, [server.address for server in found.servers])
    if not covering[providers] <= names:
        raise Contention("the pool or its limits have changed since the last look")
    return LockedPermits({row["name"]: row["value"] for row in rows if row["name"] in names}, found.servers)


# ---------------------------------------------------------------- what there is to take


class Sight(NamedTuple):
    """What running tasks hold, and the first few of the lanes."""

    held_permits: list[HeldPermits]
    tasks: list[ReadyTask]
    numbers: dict[ReadyGroupName, int]
    """How many of each lane were asked for."""
    unfit: set[str]
    """Kinds of which something fits later and not now."""


async def _sight(
    session: Session, request: ClaimRequest, ready_groups: ReadyGroups, without: set[int], *, is_counted: bool
) -> Sight:
    """Where all nodes share something it is counted, after it was locked; a few are most likely all that it allows."""
    scales = NodeCapacity(request)
    most = {
        (kind_request.kind, text): most_by_weight(request, scales, kind_request, text)
        for kind_request in _by_ready_groups(request)
        for text in ready_groups.requirement_texts[kind_request.kind]
    }
    if is_counted:
        most = {ready_group: min(count, FEW) for ready_group, count in most.items()}
    most = {ready_group: count for ready_group, count in most.items() if count > 0}
    rows = await _first(session, request, most, without, is_counted=is_counted)
    held_permits = [
        HeldPermits(split(row["holds"]), row["provider"], row["server"], row["slot"])
        for row in rows
        if row["id"] is None
    ]
    return Sight(held_permits, [ready_task(row) for row in rows if row["id"] is not None], most, scales.unfit)


def _by_ready_groups(request: ClaimRequest) -> list[KindRequest]:
    return [kind_request for kind_request in request.kinds if not kind_request.is_command and kind_request.only is None]


async def _candidates(session: Session, plan: ClaimPlan, sight: Sight, without: set[int]) -> list[ReadyTask]:
    found = await ready_commands(
        session, plan.request, plan.request.kinds, plan.shared, limit=LOOKED_AT, without=without
    )
    found += await _tasks(session, plan, sight, without)
    found += await _named(session, plan, without)
    return list({task.id: task for task in found}.values())


async def _tasks(session: Session, plan: ClaimPlan, sight: Sight, without: set[int]) -> list[ReadyTask]:
    """What was read already, and more of the ready groups of which more could be taken."""
    kind_requests = {kind_request.kind: kind_request for kind_request in _by_ready_groups(plan.request)}
    most = {
        ready_group: most_to_read(plan, kind_requests[ready_group[0]], ready_group[1]) for ready_group in sight.numbers
    }
    numbers = Counter(map(_ready_group, sight.tasks))
    again = {
        ready_group: count
        for ready_group, count in most.items()
        if count > sight.numbers[ready_group] <= numbers[ready_group]
    }
    again |= _with_targets(plan, kind_requests, most, sight.tasks)
    found = [one for one in sight.tasks if _ready_group(one) not in again]
    return found + [ready_task(row) for row in await _first(session, plan.request, again, without)]


def _ready_group(task: ReadyTask) -> ReadyGroupName:
    return task.kind, task.requirements


def _with_targets(
    plan: ClaimPlan, kind_requests: dict[str, KindRequest], most: dict[ReadyGroupName, int], found: Sequence[ReadyTask]
) -> dict[ReadyGroupName, int]:
    """Where some tasks want a certain server, tasks behind them may run on another one."""
    picky = {_ready_group(one) for one in found if one.target is not None}
    numbers = Counter(map(_ready_group, found))
    return {
        ready_group: max(most[ready_group], LOOKED_AT)
        for ready_group in picky
        if kind_requests[ready_group[0]].provider is not None
        and numbers[ready_group] >= most[ready_group] > 0
        and fits_now(plan, kind_requests[ready_group[0]], ready_group[1])
    }


async def _first(
    session: Session,
    request: ClaimRequest,
    most: dict[ReadyGroupName, int],
    without: set[int],
    *,
    is_counted: bool = False,
) -> list[Any]:
    """The first so many of each lane, and beside them what running tasks hold."""
    found: list[Any] = []
    for ready_groups in _batches(most) if session.profile.asks_one_number else [most]:
        if ready_groups or is_counted:
            found += await session.rows(
                "ready",
                [kind for kind, _ in ready_groups],
                [requirements for _, requirements in ready_groups],
                list(ready_groups.values()),
                queues_of(request),
                sorted(without),
                request.patience,
                request.node_id,
                max(ready_groups.values(), default=0),
                is_counted,
            )
            is_counted = False
    return found


def _batches(most: dict[ReadyGroupName, int]) -> list[dict[ReadyGroupName, int]]:
    """Those of which one is wanted, for they may be many, and the others."""
    ones = {ready_group: count for ready_group, count in most.items() if count == 1}
    return [ones, {ready_group: count for ready_group, count in most.items() if count > 1}]


async def _named(session: Session, plan: ClaimPlan, without: set[int]) -> list[ReadyTask]:
    """The tasks that the request names: the only ones of a kind, and the reserved one, whose permits are held."""
    request = plan.request
    only = {kind_request.kind: kind_request.only for kind_request in request.kinds}
    ids = {task_id for kind_request in request.kinds for task_id in kind_request.only or ()}
    if request.reserved_task is not None:
        ids.add(request.reserved_task)
    if not ids:
        return []
    rows = await session.rows(
        "ready_among", sorted(ids), queues_of(request), sorted(without), request.patience, request.node_id
    )
    for row in rows:
        if row["id"] == request.reserved_task and row["kind"] in only and request.reserve_microseconds > 0:
            plan.shared.hold(_kind_request_of(request, row), ready_task(row))
    return [ready_task(row) for row in rows if _is_wanted(row, only)]


def _is_wanted(row: Any, only: dict[str, tuple[int, ...] | None]) -> bool:
    if row["kind"] not in only:
        return False
    named = only[row["kind"]]
    return named is None or row["id"] in named


# ---------------------------------------------------------------- they sit down


async def _sit(session: Session, node_id: str, chosen: Iterable[Taken]) -> list[Any]:
    chosen = sorted(chosen, key=lambda entry: entry.task.id)
    if not chosen:
        return []
    return await session.rows(
        "take_permits",
        node_id,
        [entry.task.id for entry in chosen],
        [_holds(entry.grant) for entry in chosen],
        [entry.grant.provider for entry in chosen],
        [entry.grant.server for entry in chosen],
        [entry.grant.slot for entry in chosen],
        [entry.task.requirements for entry in chosen],
    )


def _holds(grant: Grant) -> str | None:
    return "\n".join(grant.limits) if grant.limits or grant.provider is not None else None


async def _charge(session: Session, request: ClaimRequest, taken: Sequence[Any]) -> None:
    rated = {kind_request.kind for kind_request in request.kinds if kind_request.is_rated}
    started = Counter(
        (row["kind"], row["limit_key"]) for row in taken if row["kind"] in rated and row["limit_key"] is not None
    )
    if started:
        await charge_starts(session, started)
        await draw(session)
