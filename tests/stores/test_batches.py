"""Batches: when one starts, which tasks are in it, and what becomes of each of them. On every store."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET
from tests.stores.actions import (
    ERROR,
    HOUR,
    KIND,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    declare_limit,
    declare_pool,
    demands,
    pass_time,
    read,
    settlement_of,
    state_of,
    states,
)

from synergon.model.claims import Claim, Claims, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewBatch, NewLimit, NewRate
from synergon.model.outcomes import Crashed, HandedBack, KeyAssigned, Outcome, Refused, Retrying, Succeeded
from synergon.model.requirements import PROCESS, UNIT, WHOLE_NODE
from synergon.model.tasks import NewTask, Reprioritizing
from synergon.stores.base import Store

READY, WAITING, RUNNING, SCHEDULED = State.READY, State.WAITING, State.RUNNING, State.SCHEDULED
MACHINE = {PROCESS: 10 * UNIT, WHOLE_NODE: UNIT}


async def declare(store: Store, size: int = 3, wait: int = HOUR) -> None:
    """Run tasks of the kind in batches."""
    batch = NewBatch(size=size, wait=wait)
    await store.declare([NewLimit(name=f"key:{KIND}", value=None, batch=batch)], [])


async def items(store: Store, number: int, key: str = "", **fields: object) -> list[int]:
    return await add_many(store, number, limit_key=key, **fields)


async def claim(worker: Worker, size: int = 3, *, count: int = 100, limit: int = 100, **kind: object) -> Claims:
    """Claim batches of this size."""
    request = KindRequest(kind=KIND, count=count, batch_size=size, **kind)  # type: ignore[arg-type]  # as a test says
    return await worker.claim_kinds(request, limit=limit, totals=MACHINE, free=MACHINE)


def ids_of(claims: list[Claim]) -> list[list[int]]:
    """The ids of the tasks of each batch; a task that runs alone is a list of its own."""
    batches: dict[int, list[int]] = {}
    for one in claims:
        batches.setdefault(one.batch_id or one.id, []).append(one.id)
    return list(batches.values())


# ---------------------------------------------------------------- when it starts


async def test_a_batch_starts_when_it_is_complete(store: Store, worker: Worker) -> None:
    await declare(store)
    first = await items(store, 2)
    assert await states(store, first) == [WAITING, WAITING]
    assert await claim(worker) == []
    (insertion,) = await store.insert([NewTask(kind=KIND, limit_key="")])
    assert (insertion.state, insertion.completes_batch) == (WAITING, True)
    assert await states(store, first) == [READY, WAITING]
    assert ids_of(await claim(worker)) == [[*first, insertion.id]]


async def test_a_batch_starts_when_its_oldest_task_has_waited(store: Store, worker: Worker) -> None:
    await declare(store, wait=HOUR)
    first, second = await items(store, 2)
    woken = await store.wake(100)
    assert woken.next_in is not None
    assert woken.next_in <= HOUR
    await declare(store, wait=HOUR - MILLISECOND)  # the moment is another one now
    await pass_time(store, MILLISECOND)
    woken = await store.wake(100)
    assert woken.next_in is not None
    assert woken.next_in <= HOUR - MILLISECOND
    assert await claim(worker) == []
    await declare(store, wait=0)
    assert ids_of(await claim(worker)) == [[first, second]]
    assert (await store.wake(100)).next_in is None


async def test_the_alarm_makes_a_batch_ready(store: Store, worker: Worker) -> None:
    await declare(store, wait=MILLISECOND)
    ids = await items(store, 2)
    await pass_time(store, MILLISECOND)
    await store.wake(100)
    assert ids_of(await claim(worker)) == [ids]


async def test_each_task_of_a_batch_says_how_long_it_has_waited(store: Store, worker: Worker) -> None:
    await declare(store)
    await items(store, 2)
    await pass_time(store, 20 * MILLISECOND)
    await items(store, 1)
    first, second, last = (one.waited for one in await claim(worker))
    assert min(first, second) >= 20 * MILLISECOND
    assert last < min(first, second)


async def test_a_wait_that_a_damaged_row_has_is_no_error(store: Store, worker: Worker) -> None:
    await declare(store, wait=2**63 - 1)
    await items(store, 2)
    assert not await claim(worker)
    await items(store, 1)
    assert len(await claim(worker)) == 3


async def test_no_alarm_is_left_behind(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    ids = await items(store, 1)
    assert (await store.wake(100)).next_in is not None
    await store.cancel(ids)
    assert (await store.wake(100)).next_in is None
    await items(store, 1)
    await items(store, 1)  # complete
    assert (await store.wake(100)).next_in is None
    await claim(worker, 2)


async def test_what_a_batch_leaves_waits_for_the_next_one(store: Store, worker: Worker) -> None:
    await declare(store)
    ids = await items(store, 8)
    claims = await claim(worker)
    assert ids_of(claims) == [ids[:3], ids[3:6]]
    assert await states(store, ids[6:]) == [WAITING, WAITING]
    assert (await store.wake(100)).next_in is not None


async def test_keys_are_not_mixed(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    a, b = await items(store, 1, "a"), await items(store, 1, "b")
    assert await claim(worker, 2) == []
    b += await items(store, 1, "b")
    assert ids_of(await claim(worker, 2)) == [b]
    assert await states(store, a) == [WAITING]


async def test_requirements_are_not_mixed(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    first = await items(store, 1)
    other = await items(store, 1, requirements=demands("gpu"))
    assert ids_of(await claim(worker, 2)) == [first]
    assert await states(store, other) == [WAITING]


async def test_a_batch_of_one_needs_no_other(store: Store, worker: Worker) -> None:
    await declare(store, size=1)
    ids = await items(store, 2)
    assert ids_of(await claim(worker, 1)) == [[ids[0]], [ids[1]]]


async def test_a_task_that_is_due_later_joins_when_it_is_due(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    late = await add(store, limit_key="", delay=30 * MILLISECOND)
    first = await add(store, limit_key="")
    assert await claim(worker, 2) == []
    await pass_time(store, 30 * MILLISECOND)
    assert (await store.wake(100)).kinds == {KIND: 1}
    assert sorted(one.id for one in await claim(worker, 2)) == [late, first]


async def test_a_paused_queue_takes_no_part(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    ids = await items(store, 2, queue="slow")
    await store.pause(["slow"])
    assert await states(store, ids) == [WAITING, WAITING]
    assert await claim(worker, 2) == []
    await store.resume(["slow"])
    assert ids_of(await claim(worker, 2)) == [ids]


async def test_an_expired_task_is_not_in_the_batch(store: Store, worker: Worker) -> None:
    await declare(store, size=3)
    ids = await items(store, 2)
    expired = await add(store, limit_key="", expires_in=20 * MILLISECOND)
    await pass_time(store, 20 * MILLISECOND)
    assert expired not in [one.id for one in await claim(worker, 3)]
    await store.wake(100)
    assert await state_of(store, expired) is State.FAILED
    assert (await read(store, expired)).reason is Reason.EXPIRED
    assert set(await states(store, ids)) <= {RUNNING, WAITING}


async def test_the_leader_may_go_before_its_batch_starts(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    ids = await items(store, 3)
    await store.cancel(ids[:1])
    assert ids_of(await claim(worker, 2)) == [ids[1:]]


async def test_a_batch_that_is_no_longer_complete_waits_again(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    ids = await items(store, 2)
    await store.cancel(ids[1:])
    assert await states(store, ids) == [WAITING, State.CANCELLED]
    assert await claim(worker, 2) == []


async def test_a_task_of_higher_priority_leads(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    low = await items(store, 3)
    high = await add(store, limit_key="", priority=5)
    assert await state_of(store, high) is READY
    assert ids_of(await claim(worker, 2, count=1)) == [[high, low[0]]]
    await store.set_priority([Reprioritizing(id=low[2], priority=9)])
    assert ids_of(await claim(worker, 2)) == [[low[2], low[1]]]


async def test_a_new_declaration_counts_from_then_on(store: Store, worker: Worker) -> None:
    ids = await items(store, 3)  # without a declaration, each is ready
    assert await states(store, ids) == [READY] * 3
    await declare(store, size=3)
    assert await states(store, ids) == [READY, WAITING, WAITING]
    await declare(store, size=4)
    assert await states(store, ids) == [WAITING] * 3
    assert not await store.set_limit(f"key:{KIND}", 5)
    assert not await store.set_limit(f"key:{KIND}", UNSET, NewRate(per=HOUR))
    (limit,) = await store.limits()
    assert (limit.value, limit.rate, limit.batch) == (None, None, NewBatch(size=4, wait=HOUR))
    assert ids_of(await claim(worker, 3)) == []


# ---------------------------------------------------------------- one execution


async def test_a_batch_counts_as_one(store: Store, worker: Worker) -> None:
    await declare(store)
    ids = await items(store, 9)
    assert ids_of(await claim(worker, limit=2)) == [ids[:3], ids[3:6]]
    assert ids_of(await claim(worker, count=1)) == [ids[6:]]


async def test_a_claim_is_bounded_and_says_that_there_is_more(store: Store, worker: Worker) -> None:
    await declare(store, size=600)
    await items(store, 1800)
    claims = await claim(worker, 600)
    assert len(claims) == 1200
    assert claims.more == {KIND}
    claims = await claim(worker, 600)
    assert (len(claims), claims.more) == (600, frozenset())


async def test_one_task_holds_the_permit_for_all(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    await declare(store)
    ids = await items(store, 6)
    claims = await claim(worker, limits=("license",))
    assert ids_of(claims) == [ids[:3]]
    (limit,) = [limit for limit in await store.limits() if limit.name == "license"]
    assert limit.in_use == 1
    await store.finish([settlement_of(one, Succeeded()) for one in claims[1:]])
    assert await claim(worker, limits=("license",)) == []
    await worker.finish(claims[0], Succeeded())
    assert ids_of(await claim(worker, limits=("license",))) == [ids[3:]]


async def test_a_rate_is_charged_once_for_all_with_the_units_of_the_leader(store: Store, worker: Worker) -> None:
    rate = NewRate(per=HOUR, burst=4)
    await store.declare([NewLimit(name="api", value=None, rate=rate)], [])
    await declare(store)
    ids = await items(store, 9, units=2)
    claims = await claim(worker, limits=("api",))
    assert ids_of(claims) == [ids[:3], ids[3:6]]
    assert claims.more == frozenset()
    assert 0 < claims.deferred[KIND] <= HOUR
    assert await states(store, ids[6:]) == [READY, WAITING, WAITING]
    claims = await claim(worker, limits=("api",))
    assert (list(claims), claims.more, list(claims.deferred)) == ([], frozenset(), [KIND])


async def test_one_task_holds_the_server_for_all(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=1)
    await declare(store)
    ids = await items(store, 4)
    claims = await claim(worker, provider="gpu")
    assert ids_of(claims) == [ids[:3]]
    assert [one.server for one in claims] == ["a", None, None]
    (server,) = await store.servers()
    assert server.in_use == 1


async def test_each_task_has_a_fence_of_its_own(store: Store, worker: Worker) -> None:
    await declare(store)
    ids = await items(store, 3)
    claims = await claim(worker)
    assert [one.claim_no for one in claims] == [1, 1, 1]
    assert {(await read(store, task_id)).batch_id for task_id in ids} == {ids[0]}
    verdicts = await store.finish(
        [
            settlement_of(claims[0], Retrying(delay=HOUR, error=ERROR)),
            settlement_of(claims[1], Succeeded(result=b"7")),
            settlement_of(claims[2], OUTCOMES["failed"]),
        ]
    )
    assert [verdict.state for verdict in verdicts] == [SCHEDULED, State.SUCCEEDED, State.FAILED]
    assert (await read(store, ids[1])).result == 7
    assert (await read(store, ids[1])).batch_id == ids[0]
    assert (await read(store, ids[0])).batch_id is None
    assert (await worker.finish(claims[0], Succeeded())).state is SCHEDULED  # it has been applied already


async def test_a_retry_joins_another_batch(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    ids = await items(store, 2)
    claims = await claim(worker, 2)
    await worker.finish(claims[0], Retrying(delay=0, error=ERROR))
    await worker.finish(claims[1], Succeeded())
    assert await state_of(store, ids[0]) is WAITING
    other = await add(store, limit_key="")
    (again, _) = await claim(worker, 2)
    assert (again.id, again.attempts, again.claim_no) == (ids[0], 2, 2)
    assert await state_of(store, other) is RUNNING


async def test_a_batch_that_is_handed_back_starts_again(store: Store, worker: Worker) -> None:
    await declare(store)
    ids = await items(store, 3)
    for one in await claim(worker):
        await worker.finish(one, HandedBack())
    assert await states(store, ids) == [READY, WAITING, WAITING]
    assert ids_of(await claim(worker)) == [ids]


async def test_a_cancelled_task_loses_its_result_alone(store: Store, worker: Worker) -> None:
    await declare(store)
    ids = await items(store, 3)
    claims = await claim(worker)
    await store.cancel([ids[0]])
    child = NewTask(kind="child")
    shared = Succeeded(result=b"1", children=(child,), has_shared_children=True)
    verdicts = await store.finish(
        [settlement_of(claims[0], shared), *(settlement_of(one, Succeeded(result=b"1")) for one in claims[1:])]
    )
    assert [verdict.state for verdict in verdicts] == [State.CANCELLED, State.SUCCEEDED, State.SUCCEEDED]
    assert len(verdicts[0].child_ids) == 1
    assert (await read(store, ids[0])).result is None


# ---------------------------------------------------------------- crashes and misfits


async def test_the_tasks_of_a_dead_node_run_alone(store: Store, worker: Worker) -> None:
    await declare(store)
    dead = await Worker.start(store, "dead")
    ids = await items(store, 3)
    await claim(dead)
    await store.reap(["dead"], 100)
    fresh = await items(store, 2)
    assert await states(store, ids) == [READY] * 3
    claims = await claim(worker)
    assert ids_of(claims) == [[task_id] for task_id in ids]
    assert all(one.requirements for one in claims)
    assert await states(store, fresh) == [WAITING] * 2


async def test_a_shared_crash_charges_nobody_and_isolates_all(store: Store, worker: Worker) -> None:
    await declare(store)
    ids = await items(store, 3)
    crash = Crashed(error=ERROR, is_shared=True)
    await store.finish([settlement_of(one, crash) for one in await claim(worker)])
    assert [(await read(store, task_id)).crashes for task_id in ids] == [0, 0, 0]
    claims = await claim(worker)
    assert ids_of(claims) == [[task_id] for task_id in ids]
    await worker.finish(claims[0], Crashed(error=ERROR))
    assert (await read(store, ids[0])).crashes == 1


async def test_a_cleared_suspect_gets_its_key_again(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    ids = await items(store, 2, "a")
    await store.finish([settlement_of(one, Crashed(error=ERROR, is_shared=True)) for one in await claim(worker, 2)])
    first, second = await claim(worker, 2)
    await worker.finish(first, Retrying(delay=0, error=ERROR))
    await worker.finish(second, Succeeded())
    (alone,) = await claim(worker, 2)
    assert (alone.id, alone.limit_key, alone.requirements) == (ids[0], None, "")
    await worker.finish(alone, KeyAssigned(limit_key="a"))
    other = await add(store, limit_key="a")
    assert ids_of(await claim(worker, 2)) == [[ids[0], other]]


async def test_a_refused_task_does_not_lead_a_batch_again(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    await Worker.start(store, "newer")
    ids = await items(store, 2)
    first, second = await claim(worker, 2)
    await worker.finish(first, Refused(error=ERROR, requirements=first.requirements))
    await worker.finish(second, HandedBack())
    other = await add(store, limit_key="")
    assert ids_of(await claim(worker, 2)) == [[ids[1], other]]
    assert await state_of(store, ids[0]) is READY


async def test_a_task_without_a_key_runs_alone(store: Store, worker: Worker) -> None:
    await declare(store, size=2)
    alone = await add(store)
    keyed = await items(store, 1)
    assert ids_of(await claim(worker, 2)) == [[alone]]
    assert await states(store, keyed) == [WAITING]


# ---------------------------------------------------------------- several at once


async def test_nodes_do_not_share_a_batch(store: Store, worker: Worker) -> None:
    await declare(store, size=5)
    other = await Worker.start(store, "node-2")
    ids = await items(store, 100)
    taken: list[Claim] = []
    while len(taken) < len(ids):
        for claims in await asyncio.gather(*(claim(one, 5, count=3) for one in (worker, other))):
            taken += claims
    assert sorted(one.id for one in taken) == ids
    assert all(len(batch) == 5 for batch in ids_of(taken))


async def test_inserts_at_once_complete_batches(store: Store, worker: Worker) -> None:
    await declare(store, size=4)
    await asyncio.gather(*(add(store, limit_key="") for _ in range(40)))
    assert [len(batch) for batch in ids_of(await claim(worker, 4))] == [4] * 10


async def test_the_writes_of_a_batch_are_committed_with_its_outcomes(store: Store, worker: Worker) -> None:
    if not store.capabilities.transactions:
        pytest.skip("the store has no transactions for task functions")
    await declare(store)
    ids = await items(store, 3)
    claims = await claim(worker)
    await store.cancel(ids[1:2])
    transaction = await store.begin(10.0)
    outcomes: list[Outcome] = [Succeeded(result=b"1"), Succeeded(result=b"2"), Retrying(delay=HOUR, error=ERROR)]
    fenced = [settlement_of(one, outcome) for one, outcome in zip(claims, outcomes, strict=True)]
    verdicts = await transaction.finish(fenced)
    assert [verdict.state for verdict in verdicts] == [State.SUCCEEDED, State.CANCELLED, SCHEDULED]
    assert await states(store, ids) == [State.SUCCEEDED, State.CANCELLED, SCHEDULED]
