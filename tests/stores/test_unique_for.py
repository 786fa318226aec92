"""`unique_for`: a key stays taken for a time after its task was accepted, also when the task has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from tests.postgres_server import administer, distributed_url, server_url, store_url
from tests.stores.actions import (
    ERROR,
    HOUR,
    KIND,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    pass_time,
    read,
    settlement_of,
    state_of,
)
from tests.support import until

from synergon.errors import KeyConflict
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.outcomes import Retrying, Succeeded
from synergon.model.tasks import Cutoffs, Insertion, NewTask
from synergon.stores.base import Store
from synergon.stores.postgres import PostgresStore


def unique(**fields: Any) -> NewTask:
    return NewTask(**{"kind": KIND, "key": "k", "unique_for": HOUR, **fields})


def plain(**fields: Any) -> NewTask:
    return NewTask(**{"kind": KIND, "key": "k", **fields})


async def insert_one(store: Store, task: NewTask) -> Insertion:
    (inserted,) = await store.insert([task])
    return inserted


async def ended_task(store: Store, worker: Worker, outcome: str = "succeeded", **fields: Any) -> int:
    """A task that has the key for an hour, and has ended."""
    inserted = await insert_one(store, unique(**fields))
    assert inserted.created
    await worker.run(OUTCOMES[outcome])
    return inserted.id


@pytest.mark.parametrize("new", [unique(), plain()], ids=["with unique_for", "without"])
@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
async def test_an_ended_task_still_has_its_key(store: Store, worker: Worker, outcome: str, new: NewTask) -> None:
    first = await ended_task(store, worker, outcome)
    again = await insert_one(store, new)
    assert again == Insertion(first, created=False, state=None)
    assert await worker.claim_ids() == []


async def test_without_it_the_key_is_free_when_the_task_has_ended(store: Store, worker: Worker) -> None:
    await insert_one(store, plain())
    await worker.run(Succeeded())
    assert (await insert_one(store, plain())).created


async def test_a_live_task_is_returned_as_ever(store: Store) -> None:
    first = await insert_one(store, unique())
    assert await insert_one(store, unique()) == Insertion(first.id, created=False, state=State.READY)


@pytest.mark.parametrize(
    ("on_conflict", "said"),
    [("raise", "task {id} has unique_for, and has ended;"), ("replace", "has ended and cannot be replaced")],
)
async def test_a_conflict_with_an_ended_task_names_it(
    store: Store, worker: Worker, on_conflict: Any, said: str
) -> None:
    first = await ended_task(store, worker)
    with pytest.raises(KeyConflict, match=said.format(id=first)) as raised:
        await store.insert([NewTask(kind="other"), plain(on_conflict=on_conflict)])
    assert raised.value.task_id == first
    assert await worker.claim_ids("other") == [], "all or nothing"


async def test_other_kinds_and_keys_are_free(store: Store, worker: Worker) -> None:
    await ended_task(store, worker)
    assert (await insert_one(store, unique(key="other"))).created
    assert (await insert_one(store, unique(kind="other"))).created


async def test_the_key_is_free_when_the_time_is_over(store: Store, worker: Worker) -> None:
    first = await insert_one(store, unique(unique_for=MILLISECOND))
    await worker.run(Succeeded())
    await pass_time(store, 2 * MILLISECOND)
    second = await insert_one(store, unique())
    assert second.created
    assert second.id != first.id
    await worker.run(Succeeded())
    assert (await insert_one(store, plain())).id == second.id, "the hold is that of the second"


async def test_a_live_task_has_its_key_when_the_time_is_over(store: Store) -> None:
    first = await insert_one(store, unique(unique_for=MILLISECOND))
    await pass_time(store, 2 * MILLISECOND)
    assert (await insert_one(store, unique())).id == first.id


async def test_the_time_counts_from_the_acceptance_and_not_from_the_end(store: Store, worker: Worker) -> None:
    await insert_one(store, unique(unique_for=50 * MILLISECOND))
    claim = await worker.claim_one()
    await pass_time(store, 60 * MILLISECOND)
    await worker.finish(claim, Succeeded())
    assert (await insert_one(store, unique())).created


async def test_the_promise_survives_pruning(store: Store, worker: Worker) -> None:
    first = await ended_task(store, worker)
    await pass_time(store, MILLISECOND)
    await store.prune(Cutoffs(succeeded=0), 100)
    assert await state_of(store, first) is None
    assert await insert_one(store, plain()) == Insertion(first, created=False, state=None)


async def test_expired_holds_are_pruned_and_others_remain(store: Store, worker: Worker) -> None:
    keys = [f"k{number}" for number in range(5)]
    await store.insert([unique(key=key, unique_for=MILLISECOND) for key in keys])
    await store.insert([unique(key="lasting")])
    for claim in await worker.claim():
        await worker.finish(claim, Succeeded())
    await pass_time(store, 2 * MILLISECOND)
    await store.prune(Cutoffs(), 3)
    await store.prune(Cutoffs(), 3)
    assert [entry.created for entry in await store.insert([plain(key=key) for key in [*keys, "lasting"]])] == [
        *([True] * 5),
        False,
    ]


@pytest.mark.parametrize("is_live", [True, False])
async def test_to_delete_a_task_frees_its_key(store: Store, worker: Worker, is_live: bool) -> None:
    first = (await insert_one(store, unique())).id if is_live else await ended_task(store, worker)
    await store.delete([first])
    second = await insert_one(store, unique())
    assert second.created
    assert second.id != first


async def test_an_operator_can_retry_a_task_whose_key_is_held(store: Store, worker: Worker) -> None:
    first = await ended_task(store, worker, "failed")
    (moved,) = await store.retry([first])
    assert moved.done
    await worker.run(Succeeded())
    assert (await insert_one(store, plain())).id == first


async def test_a_task_that_is_tried_again_keeps_its_key(store: Store, worker: Worker) -> None:
    first = await insert_one(store, unique())
    await worker.run(Retrying(delay=0, error=ERROR))
    assert (await insert_one(store, unique())).id == first.id


async def test_a_replacement_is_a_new_acceptance(store: Store, worker: Worker) -> None:
    first = await insert_one(store, unique(unique_for=MILLISECOND, delay=HOUR))
    replaced = await insert_one(store, unique(on_conflict="replace"))
    assert (replaced.id, replaced.created) == (first.id, False)
    await worker.run(Succeeded())
    await pass_time(store, 2 * MILLISECOND)
    assert (await insert_one(store, plain())).id == first.id


async def test_two_tasks_of_one_call_share_the_key(store: Store, worker: Worker) -> None:
    first, second = await store.insert([unique(), unique()])
    assert (first.created, second.created, second.id) == (True, False, first.id)
    await worker.run(Succeeded())
    third, fourth = await store.insert([plain(key="other"), plain()])
    assert (third.created, fourth) == (True, Insertion(first.id, created=False, state=None))


async def test_a_child_does_not_take_a_key_that_its_parent_holds(store: Store, worker: Worker) -> None:
    parent = await insert_one(store, unique())
    claim = await worker.claim_one()
    (verdict,) = await store.finish([settlement_of(claim, Succeeded(children=(plain(),)))])
    assert verdict.child_ids == (parent.id,)
    assert await worker.claim_ids() == []


async def test_a_task_that_follows_a_group_needs_a_free_key(store: Store, worker: Worker) -> None:
    first = await ended_task(store, worker)
    group = NewGroup(name="g", tasks=(NewTask(kind="member"),), then=plain(on_conflict="raise"))
    with pytest.raises(KeyConflict, match="use another key") as raised:
        await store.open_group(group)
    assert raised.value.task_id == first
    assert await worker.claim_ids("member") == []


@pytest.mark.parametrize("is_mixed", [False, True])
async def test_of_many_producers_one_is_accepted(store: Store, worker: Worker, is_mixed: bool) -> None:
    """Tasks end as fast as they are accepted, so that each producer may find the key free of live tasks."""
    accepted: list[int] = []
    is_over = asyncio.Event()

    async def produce(number: int) -> None:
        for round_no in range(10):
            task = plain if is_mixed and number % 2 else unique
            inserted = await insert_one(store, task(key=f"round {round_no}", kind="raced"))
            if inserted.created:
                accepted.append(inserted.id)

    async def work_off() -> None:
        while not is_over.is_set():
            claims = await worker.claim("raced")
            if claims:
                await store.finish([settlement_of(claim, Succeeded()) for claim in claims])
            await asyncio.sleep(0)

    working = asyncio.create_task(work_off())
    await store.insert([unique(key=f"round {round_no}", kind="raced") for round_no in range(10)] if is_mixed else [])
    await asyncio.gather(*map(produce, range(8)))
    is_over.set()
    await working
    assert len(accepted) == (0 if is_mixed else 10)


@pytest.mark.parametrize("new", [unique(), plain()], ids=["with unique_for", "without"])
@pytest.mark.parametrize("is_callers", [False, True])
@pytest.mark.parametrize("url", [store_url, distributed_url], ids=["standard", "distributed"])
async def test_a_task_that_is_accepted_and_ends_during_an_insert_keeps_its_key(
    url: Callable[[], str], new: NewTask, *, is_callers: bool
) -> None:
    """The insert has looked for holds before the other transaction commits, and finds no live task after it."""
    store = PostgresStore(url())
    await store.open()
    schema = store.address.schema
    other, caller = await asyncpg.connect(server_url()), await asyncpg.connect(server_url())
    async with caller.transaction():
        async with other.transaction():
            task_id = await other.fetchval(
                f"INSERT INTO {schema}.task (kind, queue, state, priority, run_at, payload, key, enqueued_at) "
                "VALUES ($1, 'default', 'ready', 0, now(), '{}', 'k', now()) RETURNING id",
                KIND,
            )
            await other.execute(
                f"INSERT INTO {schema}.key_hold VALUES ($1, 'k', $2, now() + interval '1 hour')", KIND, task_id
            )
            inserting = asyncio.create_task(store.insert_on(caller, [new]) if is_callers else store.insert([new]))
            await until(lambda: administer("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0] == 1)
            await other.execute(f"DELETE FROM {schema}.task WHERE id = $1", task_id)
        assert await inserting == [Insertion(task_id, created=False, state=None)]
    assert administer(f"SELECT count(*) FROM {schema}.task")[0][0] == 0
    await other.close()
    await caller.close()
    await store.close()


async def test_holds_cost_tasks_without_keys_nothing(store: Store, worker: Worker) -> None:
    await ended_task(store, worker)
    ids = await add_many(store, 3)
    assert await worker.claim_ids() == ids
    assert (await read(store, await add(store, key=None))).key is None
