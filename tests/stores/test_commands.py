"""Commands: ahead of everything, in the order in which they came, and never twice."""

from __future__ import annotations

import pytest
from tests.stores.actions import ERROR, Worker, add, add_many, declare_pool, pool, read, states

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import Crashed, HandedBack, Outcome, Snoozed, Succeeded
from synergon.model.tasks import Reprioritizing
from synergon.policies import HIGHEST_PRIORITY
from synergon.stores.base import Store

COMMANDS = KindRequest(kind="gpu.stop", count=100, provider="gpu", is_command=True)
WORK = KindRequest(kind="work", count=100)


async def command(store: Store, target: str | None = None, **more: object) -> int:
    return await add(store, kind="gpu.stop", is_command=True, provider="gpu", target=target, max_attempts=1, **more)


async def claim(worker: Worker, limit: int = 100) -> list[Claim]:
    return await worker.claim_kinds(WORK, COMMANDS, limit=limit)


async def test_commands_go_ahead_of_the_best_task_in_the_order_in_which_they_came(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=9)
    work = await add(store, priority=HIGHEST_PRIORITY)
    first = await command(store)
    second = await command(store, priority=5)
    (moved,) = await store.set_priority([Reprioritizing(id=second, priority=9)])
    assert not moved.done
    assert [taken.id for taken in await claim(worker)] == [first, second, work]
    assert (await read(store, first)).is_command


async def test_commands_do_not_count_against_the_limit_of_a_claim(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=9)
    ids = await add_many(store, 3)
    commands = [await command(store) for _ in range(3)]
    assert [taken.id for taken in await claim(worker, limit=1)] == [*commands, ids[0]]
    await command(store)
    assert len(await claim(worker, limit=0)) == 1


async def test_a_command_goes_to_its_target_and_waits_for_no_other(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=1, b=1)
    ids = [await command(store, target) for target in ("a", "a", "b")]
    claims = await claim(worker)
    assert [(taken.id, taken.server) for taken in claims] == [(ids[0], "a"), (ids[2], "b")]
    await worker.finish(claims[0], Succeeded())
    assert [taken.id for taken in await claim(worker)] == [ids[1]]
    assert (await read(store, ids[1])).target == "a"


async def test_many_commands_for_a_closed_server_hide_none_for_another(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=0, b=1)
    fields = {"kind": "gpu.stop", "is_command": True, "provider": "gpu", "max_attempts": 1}
    closed = await add_many(store, 1100, target="a", **fields)
    other = await command(store, "b")
    (taken,) = await claim(worker)
    assert (taken.id, taken.server) == (other, "b")
    await store.set_servers("gpu", pool(a=2, b=1))
    assert [taken.id for taken in await claim(worker)] == closed[:2]


async def test_commands_for_a_server_that_is_taken_away_fail_unless_they_run(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=1, b=1)
    ids = [await command(store, target) for target in ("a", "a", "b", None)]
    (running, *_) = await worker.claim_kinds(COMMANDS)
    assert running.id == ids[0]
    await store.set_servers("gpu", pool(b=1))
    assert (await states(store, ids))[:2] == [State.RUNNING, State.FAILED]
    lost = await read(store, ids[1])
    assert lost.reason is Reason.ERROR
    assert lost.error is not None
    assert "a is no server of gpu" in lost.error.message
    assert State.FAILED not in (await states(store, ids))[2:]
    assert (await worker.finish(running, Succeeded())).state is State.SUCCEEDED


@pytest.mark.parametrize("outcome", [HandedBack(), Crashed(error=ERROR), Snoozed(delay=0)], ids=type)
async def test_a_command_that_has_started_is_never_run_again(store: Store, worker: Worker, outcome: Outcome) -> None:
    await declare_pool(store, a=1)
    task_id = await command(store)
    (taken,) = await claim(worker)
    verdict = await worker.finish(taken, outcome)
    assert verdict.state is State.FAILED
    assert (await read(store, task_id)).reason is Reason.CRASHED
    assert await claim(worker) == []


async def test_a_command_whose_node_dies_is_never_run_again(store: Store) -> None:
    await declare_pool(store, a=1)
    task_id = await command(store)
    lost = await Worker.start(store, "lost")
    assert len(await claim(lost)) == 1
    (reaped,) = await store.reap(["lost"], 10)
    assert (reaped.id, reaped.state) == (task_id, State.FAILED)
    assert (await read(store, task_id)).reason is Reason.CRASHED


async def test_an_operator_may_give_a_command_again(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=1)
    task_id = await command(store, "a")
    (taken,) = await claim(worker)
    await worker.finish(taken, HandedBack())
    (moved,) = await store.retry([task_id])
    assert moved.done
    (again,) = await claim(worker)
    assert (again.id, again.server) == (task_id, "a")


async def test_commands_come_from_every_queue_also_from_paused_ones(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=9)
    await store.pause(["closed"])
    ids = [await command(store, queue=queue) for queue in ("closed", "other", "default")]
    await add(store, queue="closed")
    await add(store, queue="other")
    wanted = await add(store)
    request = ClaimRequest(
        node_id=worker.node_id, kinds=(WORK, COMMANDS), limit=100, queues=frozenset({"default", "closed"})
    )
    assert [taken.id for taken in await store.claim(request)] == [*ids, wanted]


async def test_a_command_is_not_run_twice_though_its_node_has_died(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=9)
    task_id = await command(store)
    await claim(worker)
    (reaped,) = await store.reap([worker.node_id], 10)
    assert (reaped.state, reaped.owner_deaths) == (State.FAILED, 1)
    record = await read(store, task_id)
    assert (record.reason, record.crashes) == (Reason.CRASHED, 0)
