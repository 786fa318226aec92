"""Everything that a PostgreSQL store can be asked for, so that every statement it has is said once."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg
import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.postgres_server import administer, server_url
from tests.stores.actions import (
    ERROR,
    HOUR,
    KIND,
    OUTCOMES,
    Worker,
    add,
    amounts,
    demands,
    listed,
    new_node,
    settlement_of,
)

from synergon.errors import KeyConflict
from synergon.model.claims import AttemptRequest, CandidateQuery, ClaimRequest, KindRequest
from synergon.model.dependencies import Need
from synergon.model.flows import FlowQuery
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import FINAL, State
from synergon.model.limits import NewBatch, NewLimit, NewProvider, NewRate, NewServer
from synergon.model.operator_actions import NewAction
from synergon.model.outcomes import FencedOutcome, HandedBack, Progress, Refused, Report, Succeeded
from synergon.model.schedules import NewSchedule
from synergon.model.task_records import TaskQuery
from synergon.model.task_statistics import KindNumbers, Numbers, StatisticsQuery
from synergon.model.tasks import Cutoffs, Extension, MetaChange, NewTask, Reprioritizing, Rescheduling
from synergon.stores.final_events import NOW
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.claim_limited import claim_limited

SUCCEEDED: Final = OUTCOMES["succeeded"]
MINUTE: Final = 60_000_000
EVERYTHING_IS_OLD: Final = Cutoffs(succeeded=-HOUR, failed=-HOUR, cancelled=-HOUR, statistics=-HOUR, audit=-HOUR)


async def do_everything(store: PostgresStore) -> None:
    """Every call of the port, and every way through it that has a statement of its own."""
    worker = await Worker.start(store)
    await do_inserts(store)
    claims = await worker.claim("other", limit=3)
    assert sum((await store.running_by_node()).values()) == len(claims)
    outcomes = [Succeeded(result=None, children=(NewTask(kind="third", key="x"),)), *OUTCOMES.values()]
    for outcome in outcomes:
        await add(store)
        claim = await worker.claim_one()
        await store.report([Report(id=claim.id, claim_no=claim.claim_no, progress=Progress(fraction=0.5))])
        await store.finish([settlement_of(claim, outcome)] * 2)  # the second has been applied already
        await store.delete(await listed(store, kinds=(KIND,), states=frozenset({State.READY})))
    for _ in range(2):
        await add(store)
    both = zip(await worker.claim(limit=2), (Succeeded(), OUTCOMES["failed"]), strict=True)
    await store.finish([settlement_of(claim, outcome) for claim, outcome in both])
    body = await store.begin(10.0)
    fenced = FencedOutcome(id=claims[0].id, claim_no=1, outcome=SUCCEEDED, progress=Progress(fraction=0.5))
    await body.finish([fenced])
    assert (await store.retry([claims[0].id]))[0].done  # it has succeeded
    await do_operations(store, claims[1].id)
    keeper = await store.keeper()
    assert await keeper.renew(worker.node_id, HOUR)
    await keeper.close()
    assert await store.requests(worker.node_id) == [
        AttemptRequest(id=claims[1].id, cancel_requested=True, extended_by=HOUR)
    ]
    assert len(await store.reap([worker.node_id], 10)) == 2
    await do_schedules(store)
    await do_tenants(store)
    await do_retention(store)
    await store.unregister("somebody")
    await store.nodes()
    assert await store.prune(EVERYTHING_IS_OLD, 100) > 0


async def do_retention(store: PostgresStore) -> None:
    await store.declare_retention(Cutoffs(succeeded=1, failed=1), "left")
    await store.declare_retention(Cutoffs(succeeded=2, failed=1), "right")  # the audit records this change
    await store.act(NewAction(verb="set_retention", subject="history", value=[1, 1, None, None], who="ada"))
    await store.retention()
    old = await store.now() // MINUTE * MINUTE - 5 * HOUR
    await store.append_statistics("left", old, [KindNumbers(kind=KIND, queue="default", numbers=Numbers(accepted=1))])
    assert await store.compact_statistics(10) == 1
    assert len(await store.statistics(StatisticsQuery(age=24 * HOUR, kind=KIND, queue="default"))) == 1
    await store.vitals()
    kept = await add(store, kind="kept", keep_for=0)
    assert await store.ready_kinds() >= {"kept"}
    await store.status()
    await store.cancel([kept])


async def do_inserts(store: PostgresStore) -> None:
    await store.insert([NewTask(kind="other", key=key) for key in "abc"])
    await add(store, kind="other", key="a", on_conflict="replace")
    await add(store, kind="other", expires_in=0)
    await add(store, kind="other", delay=1)
    await add(store, kind="held", key="h", unique_for=HOUR)
    await add(store, kind="held", key="h", unique_for=HOUR, on_conflict="replace")
    held = await add(store, kind="held", key="i", unique_for=HOUR)
    await store.cancel([held])
    assert await add(store, kind="held", key="i") == held
    await store.wake(10)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = connection.transaction()
    await transaction.start()
    await store.insert_on(connection, [NewTask(kind="other", key="d", on_conflict="raise")])
    with pytest.raises(KeyConflict):
        await store.insert_on(connection, [NewTask(kind="other", key="d", on_conflict="raise")])
    await transaction.commit()
    await connection.close()


async def do_operations(store: PostgresStore, running: int) -> None:
    task_id = await add(store, key="k")
    await store.reschedule([Rescheduling(id=task_id, delay=HOUR)])
    await store.set_priority([Reprioritizing(id=task_id, priority=1)])
    assert (await store.extend_timeout([Extension(id=running, extra=HOUR)]))[0].done
    assert await store.update_meta([MetaChange(id=task_id, values={"a": 1})]) == [{"a": 1}]
    await store.cancel([task_id, running], "why")
    assert await store.update_meta([MetaChange(id=task_id, values={"b": 2})]) == [{"a": 1, "b": 2}]
    holder = await add(store, key="k")
    assert (await store.retry([task_id]))[0].key_holder == holder
    await store.delete([holder])
    assert (await store.retry([task_id]))[0].done
    await store.cancel([task_id])
    await store.delete([task_id])
    await store.pause(["x"])
    await store.resume(["x"])
    await store.now()
    await store.secret()
    await store.replace_secret()
    await store.identity()
    await store.get([task_id])
    await store.list_tasks(TaskQuery(search="ada"))
    await store.counts()
    await store.recount(0, 0)
    await store.queues()
    await store.describe()


async def do_tenants(store: PostgresStore) -> None:
    """What tenants need."""
    worker = await Worker.start(store, "turns")
    await add(store, kind="fair", fair_key="ada", fair_step=1)
    task_id = await add(store, kind="fair", fair_key="ada", fair_step=1, key="turn")
    assert await store.fair_ahead(task_id, 100) == {"ada": 1}
    await add(store, kind="beside")
    kind_requests = [KindRequest(kind=kind, count=9, is_fair=kind == "fair") for kind in ("fair", "beside")]
    for claim in await worker.claim_kinds(*kind_requests):
        await worker.finish(claim, SUCCEEDED)
    await store.unregister(worker.node_id)


async def do_schedules(store: PostgresStore) -> None:
    schedule = NewSchedule(name="report", task=NewTask(kind="scheduled"), every=100_000)
    await store.declare_schedules([replace(schedule, name="declared")])
    assert await store.create_schedule(schedule)
    assert await store.update_schedule("report", {"overlap": "queue"})
    assert await store.run_schedule("report", "ada")
    await asyncio.sleep(0.12)
    assert (await store.fire(["declared"], 10)).tasks
    await asyncio.sleep(0.12)
    await store.fire(["declared"], 10)  # the task before has not ended, so this occurrence is skipped
    for verb in ("pause_schedule", "resume_schedule", "delete_schedule"):
        await store.act(NewAction(verb=verb, subject="report", who="ada"))
    assert len(await store.schedules()) == 1


async def do_everything_with_limits(store: PostgresStore) -> None:
    """The same for what is limited, grouped and ordered."""
    limits = [NewLimit(name=name, value=1) for name in ("key:lined", "host", "kind:served")]
    limits.append(NewLimit(name="key:rated", value=1, rate=NewRate(per=HOUR)))
    servers = (NewServer(address="host:1", capacity=1), NewServer(address="host:2", capacity=1))
    await store.declare(limits, [NewProvider(name="gpu", servers=servers, backoff_after=1)])
    worker = await Worker.start(store, "limited")
    await store.insert([NewTask(kind=kind, limit_key="ada") for kind in ("rated", "rated", "endless", *["lined"] * 20)])
    await add(store, kind="served")
    for target in ("host:1", "host:2"):
        await add(store, kind="stop", is_command=True, provider="gpu", target=target)
    commands, served = (
        KindRequest(kind="stop", count=1, provider="gpu", is_command=True),
        KindRequest(kind="served", count=1),
    )
    claims = await worker.claim_kinds(commands, served, KindRequest(kind="rated", count=1, is_rated=True))
    assert [claim.kind for claim in claims] == ["stop", "rated", "served"]
    failed = settlement_of(claims[0], Succeeded(), server=("gpu", "host:1"), is_server_well=False)
    await store.finish([failed, *(settlement_of(claim, Succeeded()) for claim in claims[1:])])
    await store.claim_probes(["gpu"])
    assert await store.set_servers("gpu", servers[:1])
    await store.set_limit("key:lined", 12)
    await store.set_limit("host", UNSET, NewRate(per=HOUR, burst=100))
    await store.set_priority([Reprioritizing(id=(await listed(store, kinds=("lined",)))[0], priority=5)])
    await store.pause(["default"])
    await store.resume(["default"])
    await do_turns(store, worker)
    await do_exchanges(store, worker)
    await do_batches(store, worker)
    await do_groups_and_orders(store)
    await do_flows(store, worker)
    await do_lines_of_callers(store)
    await do_endings(store)
    await store.limits()
    await store.servers()
    await store.running_by_node()
    assert await store.prune(EVERYTHING_IS_OLD, 100) > 0


async def do_turns(store: PostgresStore, worker: Worker) -> None:
    """A turn has come when its line is next looked at, and nobody has woken it."""
    await store.declare([NewLimit(name="key:brisk", value=None, rate=NewRate(per=200_000))], [])
    await store.insert([NewTask(kind="brisk", limit_key="ada") for _ in range(3)])
    (claim,) = await worker.claim_kinds(KindRequest(kind="brisk", count=1, is_rated=True))
    await asyncio.sleep(0.25)
    await store.finish([settlement_of(claim, Succeeded())])


async def do_batches(store: PostgresStore, worker: Worker) -> None:
    """A batch that is complete, and one that is due."""
    await store.declare([NewLimit(name="key:batched", value=None, batch=NewBatch(size=2, wait=HOUR))], [])
    await store.insert([NewTask(kind="batched", limit_key="ada") for _ in range(3)])
    outlook = await store.next_batch("batched", "ada")
    assert outlook is not None
    assert outlook.count == 2
    batched = KindRequest(kind="batched", count=5, batch_size=2)
    claims = await worker.claim_kinds(batched)
    assert len(claims) == 2
    await store.finish([settlement_of(claim, Succeeded()) for claim in claims])
    await store.wake(10)
    await store.declare([NewLimit(name="key:batched", value=None, batch=NewBatch(size=2, wait=0))], [])
    (last,) = await worker.claim_kinds(batched)
    await store.finish([settlement_of(last, HandedBack())])


async def do_exchanges(store: PostgresStore, worker: Worker) -> None:
    """The end of one task lets the next one start."""
    await store.declare([NewLimit(name="license", value=1, rate=NewRate(per=HOUR, burst=2))], [])
    await add(store, kind="ours")
    following = await add(store, kind="ours")
    ours = KindRequest(kind="ours", count=1, limits=("license",))
    (claim,) = await worker.claim_kinds(ours)
    request = ClaimRequest(node_id=worker.node_id, kinds=(ours,), limit=1)
    _, claims = await store.exchange([settlement_of(claim, Succeeded())], request)
    assert [claim.id for claim in claims] == [following]


async def do_groups_and_orders(store: PostgresStore) -> None:
    then = NewTask(kind="lined", limit_key="ada")
    group = await store.open_group(NewGroup(name="all", tasks=(NewTask(kind="member"),), then=then))
    await add(store, kind="after", after=(Need(task_id=group.insertions[0].id),))
    await store.cancel_group(group.id)
    await store.groups([group.id])
    order = await store.act(NewAction(verb="stop", subject="limited", who="ada"))
    assert [record.id for record in await store.audit(node_id="limited")] == [order.id]
    assert await store.action_done(order.id, "stopped")
    assert len(await store.audit()) == 1


async def do_flows(store: PostgresStore, worker: Worker) -> None:
    """A flow of which a step fails, is retried and is read; tasks that depend on some that have ended."""
    steps = (NewTask(kind="step"), NewTask(kind="step", after=(Need(step=0),)))
    flow = await store.open_group(NewGroup(name="flow", tasks=steps, is_flow=True))
    first, last = (insertion.id for insertion in flow.insertions)
    await worker.finish((await worker.claim("step"))[0], OUTCOMES["failed"])
    assert await store.retry_flow(flow.id)
    await worker.finish((await worker.claim("step"))[0], SUCCEEDED)
    assert [need.task_id for (need,) in await store.dependencies([last], with_results=True)] == [first]
    assert (await store.list_flows(FlowQuery())).flows
    await worker.finish((await worker.claim("step"))[0], OUTCOMES["failed"])
    assert (await store.retry([last]))[0].done
    await store.cancel([last])
    needed = await add(store)
    await store.cancel([needed])
    await add(store, kind="after", after=(Need(task_id=needed),))
    await store.wake(10)
    assert (await store.retry([needed]))[0].done
    await store.cancel([needed])


async def do_endings(store: PostgresStore) -> None:
    """One that comes late is looked for."""
    reading = await store.endings(NOW, FINAL)
    task_id = await add(store)
    await store.cancel([task_id])
    administer(
        f"UPDATE {store.address.schema}.history SET finished_at = finished_at - interval '1 s' WHERE id = {task_id}"
    )
    assert [event.task_id for event in await reading.read(10)] == [task_id]


async def do_lines_of_callers(store: PostgresStore) -> None:
    await add(store, kind="lined", limit_key="bob", key="k")
    group = await store.open_group(NewGroup(name="all", tasks=(NewTask(kind="member"),)))
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    async with connection.transaction():
        replacing = NewTask(kind="lined", limit_key="ada", key="k", on_conflict="replace")
        await store.insert_on(connection, [replacing, NewTask(kind="member", group_id=group.id)])
    await connection.close()


async def do_everything_with_demands(store: PostgresStore) -> None:
    """The same for what only some nodes can carry."""
    worker = await Worker.start(store, "carrier")
    big = await add(store, kind="big", requirements=demands(cpu=8))
    small = await add(store, kind="big", requirements=demands(cpu=1))
    kind_request, totals = KindRequest(kind="big", count=9), amounts(cpu=8)
    assert [
        record.id for record in await store.read_candidates(CandidateQuery(kind_request=kind_request, totals=totals))
    ] == [
        big,
        small,
    ]
    assert await store.ahead(small, 10) == 1
    assert (
        await worker.claim_kinds(kind_request, totals=totals, patience=0, shares=(amounts(cpu=1),))
    ).reserved is not None
    named = KindRequest(kind="big", count=9, only=(small,))
    claims = await worker.claim_kinds(named, totals=totals, free=amounts(cpu=1), reserved_task=big)
    assert [claim.id for claim in claims] == [small]
    assert (
        await worker.claim_kinds(kind_request, totals=totals, reserved_task=big, reserve_microseconds=0)
    ).reserved is None
    assert await store.next_start("rated", "nobody") is None
    await do_refusals(store, worker)
    await do_waits(store)
    await do_claim_of_a_held_row(store, worker, big)
    await do_cordon_beside_a_claim(
        store, ClaimRequest(node_id="carrier", kinds=(kind_request,), limit=1, totals=totals)
    )


async def do_refusals(store: PostgresStore, worker: Worker) -> None:
    """A node refuses a task, others take it, and the last one ends it; then somebody wants it again."""
    await store.register(replace(new_node("newer"), kinds=("fresh",)))
    task_id = await add(store, kind="fresh")
    for node in (worker, Worker(store, "newer")):
        (claim,) = await node.claim("fresh")
        await node.finish(claim, Refused(error=ERROR, requirements=claim.requirements))
    await store.retry([task_id])
    await store.delete([task_id])


async def do_waits(store: PostgresStore) -> None:
    await store.declare([NewLimit(name="key:queued", value=1)], [])
    ids = [await add(store, kind="queued", limit_key="eve") for _ in range(3)]
    assert await store.ahead(ids[2], 10) == 1
    needed = await add(store, kind="member")
    assert await store.ahead(await add(store, kind="after", after=(Need(task_id=needed),)), 10) is not None


async def do_claim_of_a_held_row(store: PostgresStore, worker: Worker, task_id: int) -> None:
    """Somebody's own transaction holds it."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    async with connection.transaction():
        await connection.execute(f"SELECT 1 FROM {store.address.schema}.task WHERE id = $1 FOR UPDATE", task_id)
        kind_request = KindRequest(kind="big", count=9)
        assert await worker.claim_kinds(kind_request, totals=amounts(cpu=8), free=amounts(cpu=8)) == []
    await connection.close()


async def do_cordon_beside_a_claim(store: PostgresStore, request: ClaimRequest) -> None:
    """The order comes after the look and before the claim."""
    request = replace(request, free=request.totals)
    _, groups = await store.statement(lambda session: session.ready.groups(request))
    assert groups
    await store.act(NewAction(verb="cordon", subject=request.node_id, who="ada"))
    claims = await claim_limited(store, request, groups, {})
    assert (claims, claims.is_cordoned) == ([], True)
    await store.act(NewAction(verb="uncordon", subject=request.node_id, who="ada"))
