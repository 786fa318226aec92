"""The claim rule, for claims where more than the slots of a node decide: requirements, limits, servers, rates, commands
or reservations.

The rule locks the limits and servers that the request needs, counts the permits that running tasks hold, reads no more
ready tasks than the node could take, and plans with `claim_plan`. A task's row stores its permits while it runs: the
usage of a limit is the number of running rows that name it.

In PostgreSQL a concurrent claim may have taken a planned task. The rule then plans again without that task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from synergon.errors import LeaseLost
from synergon.model.claims import Claim, ClaimRequest, Claims, DryRun, KindRequest
from synergon.model.lifecycle import State
from synergon.model.requirements import WHOLE_NODE, parse_requirements
from synergon.stores.rows import SharedLimits
from synergon.stores.rules import batches, key_queues, reservations
from synergon.stores.rules.claim_plan import ClaimPlan, ReadyClass, ReadyGroupName, ReadyTask
from synergon.stores.rules.follow_ups import apply_follow_ups
from synergon.stores.rules.node_capacity import ClaimOrder, Fit, NodeCapacity, may_reserve, requirements_of
from synergon.stores.rules.server_health import capacity_at
from synergon.stores.rules.shared_capacity import SharedCapacity
from synergon.stores.session import Session

PLANS: Final = 8
"""The maximum number of plans in a claim, if concurrent claims take some of its planned tasks each time."""

PLANS_FOR_BATCHES: Final = 64
"""The maximum number of plans in a claim that takes batches: each batch that it takes may make the next one ready."""

READ_FOR_TARGETS: Final = 1000
"""How many tasks of a group are read if some of them are for one server only or have blamed a server, and how many
commands for each server. Behind a task that cannot run now there may be a task that can."""


async def claim(session: Session, request: ClaimRequest, groups: Collection[ReadyGroupName]) -> Claims:
    """Claim the first tasks in claim order that fit the node and get all permits that they need.

    `groups` are the ready groups of the requested kinds.
    """
    needed = await _with_hopeless(session, without_idle_kinds(request, groups), groups)
    limits = await session.ready.lock_limits(needed.kinds)
    started: dict[ReadyTask, Claim] = {}
    order: dict[ReadyTask, ClaimOrder] = {}  # by the plan that took the task: only that one knows its turn
    claims, unfit, charged = Claims(), set[str](), set[str]()
    sizes, members = batches.sizes_of(needed), dict[int, list[Claim]]()
    for _ in range(PLANS if not sizes else PLANS_FOR_BATCHES):
        plan, candidates = await _gather(session, _without_started(needed, started), groups, limits)
        for task in candidates:
            plan.offer(task)
        unfit |= plan.unfit
        taken = {one.id: one for one in await session.ready.take(request.node_id, plan.taken)} if plan.taken else {}
        for task, grant in plan.taken:
            if task.id in taken:
                started[task], order[task] = taken[task.id], plan.order(task)
                for name in plan.shared.rated(grant):
                    limits.rates[name].charge(grant.units)
                    charged.add(name)
        is_complete = len(taken) == len(plan.taken)
        claims.more = await _add_members(session, request, sizes, taken, members) if sizes else claims.more
        if not is_complete and not started:
            is_cordoned = await session.ready.is_cordoned(request.node_id)
            if is_cordoned is not False:
                return rejected(request.node_id, is_cordoned=is_cordoned)
        if is_complete and plan.reserved is not None:
            claims.reserved = await reservations.reserve(session, request, plan.reserved)
            is_complete = claims.reserved is not None
        may_lead = claims.more and plan.reserved is None and sum(map(len, members.values())) < batches.ITEMS_AT_ONCE
        if is_complete and not may_lead:
            break
    if charged:
        await session.limits.set_next_starts({name: limits.rates[name].next_at or 0 for name in charged})
    await _charge_key_queues(session, request, started.values())
    claims.deferred = _deferred(plan)
    if request.reserved_task is not None and all(task.id != request.reserved_task for task in started):
        claims.reserved = await reservations.renew(session, request, plan)
    for task in sorted(started, key=order.__getitem__):
        claims += members.get(task.id) or [started[task]]
    claims.unfit = frozenset(unfit)
    return claims


async def dry_run(session: Session, request: ClaimRequest, task_id: int) -> DryRun:
    """What `claim` would do with a task. Reads and plans as a claim does, but locks and changes nothing."""
    _, groups = await session.ready.groups(request)
    now = await session.read_clock()
    servers = [capacity_at(row, now) for row in await session.servers.all()]
    limits = SharedLimits.of(await session.limits.all(), servers, now)
    plan, candidates = await _gather(session, without_idle_kinds(request, groups), groups, limits)
    for task in candidates:
        grant = plan.offer(task)
        if task.id == task_id or plan.reserved is not None:
            return DryRun(is_taken=grant is not None, reserved=plan.reserved.id if plan.reserved is not None else None)
    return DryRun(is_taken=False)


def rejected(node_id: str, *, is_cordoned: bool | None) -> Claims:
    """The answer to a node that may not claim. Raises `LeaseLost` if it has no live lease (`is_cordoned` is None)."""
    if is_cordoned is None:
        raise LeaseLost(f"node {node_id} has no live lease, so it may not claim; start it again as a new node")
    claims = Claims()
    claims.is_cordoned = True
    return claims


async def _add_members(
    session: Session,
    request: ClaimRequest,
    sizes: Mapping[str, int],
    taken: Mapping[int, Claim],
    members: dict[int, list[Claim]],
) -> frozenset[str]:
    """Add the batches of the leaders among the taken tasks to `members`. Returns the kinds that have new leaders."""
    members |= await batches.take_members(session, request.node_id, sizes, taken.values())
    moves = await apply_follow_ups(session) if session.touched else {}
    return frozenset(kind for kind, state in moves.values() if state is State.READY and kind in sizes)


def _deferred(plan: ClaimPlan) -> dict[str, int]:
    """The kinds of the request that a rate defers, and for how many microseconds."""
    deferred = {kind.kind: plan.shared.deferred_for(kind) for kind in plan.request.kinds}
    return {kind: microseconds for kind, microseconds in deferred.items() if microseconds > 0}


async def _charge_key_queues(session: Session, request: ClaimRequest, started: Iterable[Claim]) -> None:
    rated = {kind.kind for kind in request.kinds if kind.is_rated}
    starts = Counter((one.kind, one.limit_key) for one in started if one.kind in rated and one.limit_key is not None)
    if starts:
        await key_queues.charge_starts(session, starts)
        await apply_follow_ups(session)


# ---------------------------------------------------------------- the request


async def _with_hopeless(session: Session, request: ClaimRequest, groups: Iterable[ReadyGroupName]) -> ClaimRequest:
    """The request with `hopeless` set: the tasks that this node and all other live nodes have refused. The node that
    had not refused them has left since."""
    refused = [(kind, queue, by) for kind, queue, text in groups if request.node_id in (by := _refused_by(text))]
    if not refused:
        return request
    runners = {(kind, queue): await session.nodes.runners(kind, queue) for kind, queue, _ in refused}
    open_to_others = {(kind, by) for kind, queue, by in refused if not set(by).issuperset(runners[kind, queue])}
    return replace(request, hopeless=frozenset((kind, by) for kind, _, by in refused) - open_to_others)


def _refused_by(requirements: str) -> tuple[str, ...]:
    return parse_requirements(requirements).refused_by if requirements else ()


def without_idle_kinds(request: ClaimRequest, groups: Iterable[ReadyGroupName]) -> ClaimRequest:
    """The request without kinds that have no ready task, so that nothing is locked for them. Commands stay if the
    servers of their provider are locked for another kind: a command that arrived after the groups were read must
    precede the tasks."""
    kinds = request.open_kinds
    ready = {kind for kind, _, _ in groups}
    locked = {kind.provider for kind in kinds if kind.kind in ready} - {None}
    reserved = (kind for kind in kinds if kind.kind in ready or (kind.is_command and kind.provider in locked))
    return replace(request, kinds=tuple(reserved))


def _without_started(request: ClaimRequest, started: Collection[ReadyTask]) -> ClaimRequest:
    """The request, reduced by the tasks that were taken already."""
    if not started:
        return request
    kinds = {kind.kind: kind for kind in request.kinds}
    numbers = Counter(task.kind for task in started)
    costs = [requirements_of(kinds[task.kind], task.requirements, task.queue).cost for task in started]
    free = dict(request.free)
    for cost in costs:
        for name, amount in cost.items():
            free[name] = free.get(name, 0) - amount
    number = sum(numbers[kind.kind] for kind in request.kinds if not kind.is_command)
    if number:
        free[WHOLE_NODE] = 0
    is_alone = any(WHOLE_NODE in cost for cost in costs)
    return replace(
        request,
        kinds=tuple(replace(kind, count=kind.count - numbers[kind.kind]) for kind in request.kinds),
        limit=0 if is_alone else request.limit - number,
        free=free,
        shares=(*request.shares, *filter(None, costs)),
        held={} if any(task.id == request.reserved_task for task in started) else request.held,
    )


# ---------------------------------------------------------------- candidates


async def _gather(
    session: Session, request: ClaimRequest, groups: Iterable[ReadyGroupName], limits: SharedLimits
) -> tuple[ClaimPlan, list[ReadyTask]]:
    """Begin a plan, and read the candidates to offer to it, in claim order. If nodes share limits or servers, the held
    permits are read, too."""
    # What is held for the reserved task is free again when that is taken, so more tasks may follow it.
    node = NodeCapacity(replace(request, held={}))
    most = _most_by_node(request, node, groups)
    if limits.values or limits.servers:
        numbers = {group: min(number, session.ready.reads_ahead) for group, number in most.items()}
        held, tasks = await session.ready.held_permits(request, numbers)
    else:
        numbers, held = dict(most), []
        tasks = await session.ready.first(request, numbers) if numbers else []
    plan = ClaimPlan(request, SharedCapacity(limits.values, limits.servers, held, limits.rates))
    plan.node.unfit |= node.unfit
    while again := _most_again(plan, most, numbers, tasks):
        tasks = [task for task in tasks if task.group not in again]
        tasks += await session.ready.first(request, again)
        numbers |= again
    tasks += await _commands(session, plan)
    tasks += await _named(session, plan)
    candidates = {task.id: task for task in tasks}.values()
    return plan, plan.in_order(candidates, await _oldest(session, candidates))


async def _oldest(session: Session, candidates: Collection[ReadyTask]) -> Mapping[ReadyClass, Sequence[int]]:
    """The smallest ids of each class of candidates with tags, for `fair_ages`. Empty if all candidates are of one kind,
    because then they are not needed."""
    classes = {task.ready_class for task in candidates if task.fair_tag}
    if not classes or len({task.kind for task in candidates}) == 1:
        return {}
    return await session.fair.oldest(classes, len(candidates))


def _most_by_node(
    request: ClaimRequest, node: NodeCapacity, groups: Iterable[ReadyGroupName]
) -> dict[ReadyGroupName, int]:
    """How many tasks of each group to read, by the node's capacity: as many as the node could take, and one more for
    which it might reserve capacity. Groups that do not fit now are read only if the node may reserve."""
    kinds = {kind.kind: kind for kind in request.kinds if not kind.is_command and kind.only is None}
    most: dict[ReadyGroupName, int] = {}
    for group in groups:
        kind = kinds.get(group[0])
        number = 0 if kind is None else min(kind.count, node.slots(kind) + may_reserve(request))
        if kind is None or number <= 0:
            continue
        requirements = requirements_of(kind, group[2], group[1])
        if node.fit(kind, requirements) is Fit.NEVER:
            continue
        share = node.most(kind, requirements)
        if not share:
            node.unfit.add(kind.kind)
        number = min(number, share + 1 if share else may_reserve(request))
        if number > 0:
            most[group] = number
    return most


def _most_again(
    plan: ClaimPlan,
    most: Mapping[ReadyGroupName, int],
    numbers: Mapping[ReadyGroupName, int],
    tasks: Sequence[ReadyTask],
) -> dict[ReadyGroupName, int]:
    """The groups to read again, with the number of tasks: the plan can use more of their tasks than were read, and they
    may have more."""
    kinds = {kind.kind: kind for kind in plan.request.kinds}
    counts = Counter(task.group for task in tasks)
    choosy = {task.group for task in tasks if task.target is not None or task.has_blamed}
    again: dict[ReadyGroupName, int] = {}
    for group, by_node in most.items():
        kind = kinds[group[0]]
        number = min(by_node, plan.shared.most(kind))
        if number <= 0 or counts[group] < numbers[group]:
            continue
        if group in choosy and counts[group] >= number and _may_pass_over(plan, kind, group):
            number = READ_FOR_TARGETS
        if number > numbers[group]:
            again[group] = number
    return again


def _may_pass_over(plan: ClaimPlan, kind: KindRequest, group: ReadyGroupName) -> bool:
    """Whether later tasks of the group may be taken although an earlier one gets no server."""
    return kind.provider is not None and plan.node.fit(kind, requirements_of(kind, group[2], group[1])) is Fit.NOW


async def _commands(session: Session, plan: ClaimPlan) -> list[ReadyTask]:
    """The first commands for each server that has a free permit. Commands for other servers are not read, so they block
    none of these."""
    kinds = [kind for kind in plan.request.kinds if kind.is_command and kind.count > 0]
    providers = sorted({kind.provider for kind in kinds if kind.provider is not None})
    servers = {provider: plan.shared.open_to_commands(provider) for provider in providers}
    kinds = [kind for kind in kinds if kind.provider is None or servers[kind.provider]]
    return await session.ready.commands(plan.request, kinds, servers, READ_FOR_TARGETS) if kinds else []


async def _named(session: Session, plan: ClaimPlan) -> list[ReadyTask]:
    """The tasks that the request names by id: those of `only`, and the reserved task. The plan holds permits for the
    reserved task."""
    request = plan.request
    only = {kind.kind: kind.only for kind in request.kinds}
    ids = {task_id for named in only.values() for task_id in named or ()}
    if request.reserved_task is not None:
        ids.add(request.reserved_task)
    tasks = [task for task in await session.ready.among(request, ids) if task.kind in only] if ids else []
    for task in tasks:
        if task.id == request.reserved_task and request.reserve_microseconds > 0:
            plan.hold(task)
    return [task for task in tasks if (named := only[task.kind]) is None or task.id in named]
