"""Builds an explanation: reads the store, finds the causes for which the task waits, and makes the sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime

from msgspec.structs import replace

from synergon.explain.blockers import causes_on
from synergon.explain.dry_run import dry_run
from synergon.explain.explanation import FARTHEST, NEVER, SHARED, Cause, Explanation, NodeOutlook, Why
from synergon.explain.finished import ended, running, suspicion
from synergon.explain.node_view import NodeView, node_view
from synergon.explain.shared_state import SharedState
from synergon.explain.text import SHOWN, behind, clause, lasting, names, on_node, plural, some, turns
from synergon.model.attempts import AttemptOutcome
from synergon.model.claims import CandidateQuery, KindRequest
from synergon.model.lifecycle import State
from synergon.model.nodes import NodeRecord
from synergon.model.record import to_datetime
from synergon.model.task_records import QueueRecord, TaskRecord
from synergon.node.node import Node
from synergon.policies import SERVER_FAILURE_LIMIT
from synergon.stores.base import Store
from synergon.stores.rules.node_capacity import requirements_of
from synergon.stores.rules.rates import next_start


async def explain(store: Store, here: Node | None, task: TaskRecord) -> Explanation:
    """Explain why the task does not run, how it runs, or how it ended.

    The store is read in one round, whose cost does not depend on the number of tasks: positions are counted up to 1000.
    If no cause is found, a dry run of each node's next claim shows whether other tasks precede this one.
    """
    now = to_datetime(await store.now())
    if task.state.is_final:
        return _explanation(task, ended(task, now))
    nodes = [record for record in await store.nodes() if record.concurrency]
    if task.state is State.RUNNING:
        found = next((node_view(record, here) for record in nodes if record.id == task.node_id), None)
        return _explanation(task, running(task, found, now))
    limits, servers, queues, ahead, tenants_ahead = await asyncio.gather(
        store.limits(),
        store.servers(),
        _queues(store, task),
        store.ahead(task.id, FARTHEST),
        _tenants_ahead(store, task),
    )
    runners = [node_view(record, here) for record in nodes if task.kind in record.kinds]
    shared = SharedState(limits, servers, queues, now, nodes)
    view = _View(store, task, runners, shared, ahead, tenants_ahead, now)
    match task.state:
        case State.SCHEDULED:
            return view.scheduled(await _is_deferred_by_rate(store, task, shared))
        case State.WAITING:
            return await view.waiting()
        case _:
            return await view.ready()


async def _tenants_ahead(store: Store, task: TaskRecord) -> dict[str, int]:
    """How many ready tasks of each tenant precede the task."""
    return {} if task.fair_key is None else await store.fair_ahead(task.id, FARTHEST)


async def _queues(store: Store, task: TaskRecord) -> list[QueueRecord]:
    """The queues; empty if the task's queue cannot be the cause. Reading the queues also counts all tasks, which is
    slow if there are many. So the store first searches for a task of this kind and queue that a claim could take: if
    there is one, the queue is not paused."""
    if task.is_command or task.state is State.SCHEDULED:
        return []
    if task.state is State.READY:
        kind_request = KindRequest(kind=task.kind, count=1)
        requirements = requirements_of(kind_request, task.requirements)
        look = CandidateQuery(
            kind_request=kind_request,
            queues=frozenset({task.queue}),
            labels=frozenset(requirements.needs),
            totals=requirements.cost,
            limit=1,
        )
        if await store.read_candidates(look):
            return []
    return await store.queues()


async def _is_deferred_by_rate(store: Store, task: TaskRecord, shared: SharedState) -> bool:
    """Whether the task is scheduled for the moment at which the rate of its key queue permits the next start. In that
    case the rate has deferred it, whatever its first due time was."""
    limit = shared.limit(f"key:{task.kind}")
    if task.limit_key is None or limit is None or limit.rate is None:
        return False
    next_at = await store.next_start(task.kind, task.limit_key)
    return next_at is not None and to_datetime(next_start(limit.rate, next_at, 0)) == task.run_at


def _explanation(task: TaskRecord, sentence: str) -> Explanation:
    return Explanation(id=task.id, kind=task.kind, state=task.state, sentence=sentence)


class _View:
    """One task that does not run, with everything that was read about it."""

    def __init__(
        self,
        store: Store,
        task: TaskRecord,
        nodes: list[NodeView],
        shared: SharedState,
        ahead: int | None,
        tenants_ahead: dict[str, int],
        now: datetime,
    ) -> None:
        self._store = store
        self._task = task
        self._nodes = nodes
        self._shared = shared
        self._position = None if ahead is None else ahead + 1
        self._tenants_ahead = tenants_ahead
        self._now = now

    # ------------------------------------------------------------ scheduled or waiting

    def scheduled(self, is_deferred_by_rate: bool) -> Explanation:
        """Explain a scheduled task: it waits for a moment."""
        causes = [self._time(is_deferred_by_rate)]
        if all(node.is_silent for node in self._nodes):
            causes.append(Cause(why=Why.UNKNOWN_KIND, subject=self._task.kind))
        return self._not_yet(f"scheduled: {self._clauses(causes)}", causes)

    def _time(self, is_deferred_by_rate: bool) -> Cause:
        task, until = self._task, self._task.run_at
        if until <= self._now:
            return Cause(why=Why.DUE, since=until)
        if is_deferred_by_rate:
            return Cause(why=Why.RATE, subject=task.limit_key or "", until=until)
        error = task.error
        is_later = task.started_at is not None and (error is None or error.at is None or error.at < task.started_at)
        if task.claim_no and is_later:
            return Cause(why=Why.SNOOZED, until=until)
        last = task.ended_attempts[-1] if task.ended_attempts else None
        if last is not None and last.outcome is AttemptOutcome.SERVER_FAILED:
            return Cause(
                why=Why.SERVER_FAILED,
                subject=last.server or "",
                in_use=task.server_failures,
                of=SERVER_FAILURE_LIMIT,
                until=until,
            )
        if error is not None and task.attempts:
            most = None if task.max_attempts is None else task.max_attempts - 1
            return Cause(why=Why.RETRYING, subject=error.type, in_use=task.attempts, of=most, until=until)
        return Cause(why=Why.DELAYED, until=until)

    async def waiting(self) -> Explanation:
        """Explain a waiting task: it waits for its dependencies, for its batch or in its key queue."""
        task = self._task
        if task.is_dependent:
            (needs,) = await self._store.dependencies([task.id])
            causes = [
                Cause(why=Why.DEPENDENCY, subject=str(need.task_id), kind=need.kind, state=need.state)
                for need in needs
                if need.is_open
            ]
            count = f"for {plural(len(causes), 'task')}: " if len(causes) > SHOWN else "for "
            return self._not_yet(f"waits {count}{self._clauses(causes)}", causes)
        causes = self._shared.pause(task)
        if not causes:
            causes = [await self._key_queue(task.limit_key or "")]
        sentence = f"waits: {self._clauses(causes)}{behind(self._position)}"
        return self._not_yet(sentence, causes, position=self._position)

    async def _key_queue(self, limit_key: str) -> Cause:
        """The cause for which the task waits in its key queue: its batch, or other tasks of the key queue."""
        limit = self._shared.limit(f"key:{self._task.kind}")
        if limit is not None and limit.batch is not None:
            batch = await self._store.next_batch(self._task.kind, limit_key)
            if batch is not None:
                until = None if batch.due_at is None else to_datetime(batch.due_at)
                return Cause(why=Why.BATCH, subject=limit_key, in_use=batch.count, of=batch.size, until=until)
        return Cause(why=Why.KEY_QUEUE, subject=limit_key, of=None if limit is None else limit.value)

    def _not_yet(self, sentence: str, causes: list[Cause], *, position: int | None = None) -> Explanation:
        """The explanation of a task that is not ready. It mentions nodes only if none of them can ever run the task."""
        outlooks = [self._outlook(node, []) for node in self._nodes if not node.is_silent]
        if not outlooks or not _is_hopeless(outlooks):
            return self._explained(sentence, causes, position=position)
        never = [_only(outlook, NEVER) for outlook in outlooks]
        told = f"{sentence}; {self._node_text(never, names(never))}; no live node could ever run it"
        return self._explained(told, causes, nodes=never, position=position)

    # ------------------------------------------------------------ ready

    async def ready(self) -> Explanation:
        """Explain a ready task: it waits for a node."""
        task, nodes = self._task, self._nodes
        pause = self._shared.pause(task)
        outlooks = [self._outlook(node, pause) for node in nodes]
        outlooks = [await self._with_dry_run(node, outlook) for node, outlook in zip(nodes, outlooks, strict=True)]
        causes = self._common(outlooks, pause)
        sentence = (
            f"ready, due {lasting(task.run_at, self._now)}{suspicion(task)}{self._ready_text(outlooks, causes)}"
            f"{self._reserved_text(outlooks)}"
        )
        return self._explained(sentence, causes, nodes=outlooks, position=self._position)

    def _outlook(self, node: NodeView, pause: list[Cause]) -> NodeOutlook:
        own = causes_on(node, self._task, self._now)
        is_heard = not node.is_silent and node.state.is_published
        shared = self._shared.causes(self._task, node.kind_request(self._task.kind)) if is_heard else []
        causes = (*self._expiry(), *pause, *shared, *own)
        return NodeOutlook(
            id=node.record.id, name=node.record.name, can_start=not causes, causes=causes, age=round(node.age, 3)
        )

    async def _with_dry_run(self, node: NodeView, outlook: NodeOutlook) -> NodeOutlook:
        """The outlook of a node after a dry run of its next claim, if one is needed."""
        is_short = not outlook.can_start and all(cause.why in (Why.RESOURCE, Why.OCCUPIED) for cause in outlook.causes)
        if not outlook.can_start and not (is_short and self._shared.may_be_reserved(self._task, node.request([]))):
            return outlook
        found = await dry_run(self._store, node, self._task)
        if is_short:
            return replace(outlook, will_reserve=found.reserved == self._task.id)
        if found.is_taken:
            return outlook
        behind = Cause(why=Why.BEHIND)
        if found.reserved is not None:
            behind = Cause(why=Why.WILL_RESERVE, subject=str(found.reserved))
        return replace(outlook, can_start=False, causes=(behind,))

    def _expiry(self) -> list[Cause]:
        moment = self._task.expires_at
        return [] if moment is None or moment > self._now else [Cause(why=Why.EXPIRED, since=moment)]

    def _common(self, outlooks: list[NodeOutlook], pause: list[Cause]) -> list[Cause]:
        """The causes that apply on all nodes."""
        heard = [outlook for outlook in outlooks if not _has_no_status(outlook)]
        if not any(not _is_silent(outlook) for outlook in outlooks):
            unknown = Cause(why=Why.UNKNOWN_KIND, subject=self._task.kind)
            return [*self._expiry(), *pause, unknown]
        shared = [cause for cause in heard[0].causes if cause.why in SHARED] if heard else pause
        everywhere = [cause for cause in shared if all(cause in outlook.causes for outlook in heard)]
        return [*self._expiry(), *everywhere]

    def _ready_text(self, outlooks: list[NodeOutlook], causes: list[Cause]) -> str:
        called = names(outlooks)
        able = [called[outlook.id] for outlook in outlooks if outlook.can_start]
        if able:
            return f"; it can start on {some(able)}"
        position = f"{behind(self._position)}{turns(self._task.fair_key, self._tenants_ahead)}"
        if any(cause.why in (Why.UNKNOWN_KIND, Why.EXPIRED, Why.PAUSED) for cause in causes):
            return f"; {self._clauses(causes)}"
        own = [_without(outlook, causes) for outlook in outlooks]
        held_up = [outlook for outlook in own if outlook.causes]
        is_any_free = len(held_up) < len(own)
        if causes and is_any_free:
            return f"; waits for a permit: {self._clauses(causes)}{position}"
        besides = f"{self._clauses(causes)}, and " if causes else ""
        told = f"; {besides}{self._node_text(held_up, called)}"
        return f"{told}; no live node could ever run it" if _is_hopeless(outlooks) else f"{told}{position}"

    def _node_text(self, outlooks: list[NodeOutlook], called: Mapping[str, str]) -> str:
        count = len(outlooks)
        verb = "runs" if count == 1 else "run"
        told = some([on_node(called[outlook.id], outlook, self._now) for outlook in outlooks])
        return f"{plural(count, 'node')} {verb} `{self._task.kind}`: {told}"

    def _reserved_text(self, outlooks: list[NodeOutlook]) -> str:
        keeper, called = self._reserving_node(), names(outlooks)
        if keeper is not None:
            return f"; {keeper.name} has reserved capacity for it"
        willing = [called[outlook.id] for outlook in outlooks if outlook.will_reserve]
        if not willing:
            return ""
        who = willing[0] if len(willing) == 1 else f"one of {some(willing)}"
        return f"; {who} is about to reserve capacity for it"

    def _reserving_node(self) -> NodeRecord | None:
        """The live node that has reserved capacity for the task. None if there is none. The status of the node must
        confirm the reservation, because the task's row may be outdated."""
        for node in self._nodes:
            if (
                node.record.id == self._task.reserved_by
                and node.state.reserved_task == self._task.id
                and not node.is_silent
            ):
                return node.record
        return None

    # ------------------------------------------------------------ any state

    def _clauses(self, causes: list[Cause]) -> str:
        return some([clause(cause, self._now) for cause in causes])

    def _explained(
        self,
        sentence: str,
        causes: list[Cause],
        *,
        nodes: list[NodeOutlook] | None = None,
        position: int | None = None,
    ) -> Explanation:
        task, keeper = self._task, self._reserving_node()
        return Explanation(
            id=task.id,
            kind=task.kind,
            state=task.state,
            sentence=sentence,
            causes=tuple(causes),
            nodes=tuple(nodes or ()),
            position=position,
            tenants_ahead=self._tenants_ahead,
            reserved_by=None if keeper is None else keeper.id,
        )


def _is_silent(outlook: NodeOutlook) -> bool:
    return any(cause.why is Why.SILENT for cause in outlook.causes)


def _has_no_status(outlook: NodeOutlook) -> bool:
    return any(cause.why in (Why.SILENT, Why.NO_STATUS) for cause in outlook.causes)


def _is_hopeless(outlooks: list[NodeOutlook]) -> bool:
    """Whether each live node that runs the kind can never run the task."""
    living = [outlook for outlook in outlooks if not _is_silent(outlook)]
    return all(any(cause.why in NEVER for cause in outlook.causes) for outlook in living)


def _only(outlook: NodeOutlook, whys: Collection[Why]) -> NodeOutlook:
    return _without(outlook, [cause for cause in outlook.causes if cause.why not in whys])


def _without(outlook: NodeOutlook, causes: list[Cause]) -> NodeOutlook:
    left = tuple(cause for cause in outlook.causes if cause not in causes)
    return replace(outlook, causes=left)
