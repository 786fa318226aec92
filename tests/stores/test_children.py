"""Children: stored together with the success of their parent, and not otherwise."""

from __future__ import annotations

import pytest
from tests.stores.actions import (
    HOUR,
    KIND,
    OUTCOMES,
    Worker,
    add,
    add_in_state,
    add_many,
    listed,
    read,
    settlement_of,
    state_of,
)

from synergon.model.lifecycle import FINAL, State
from synergon.model.outcomes import Succeeded
from synergon.model.tasks import NewTask, OnConflict
from synergon.stores.base import Store


async def test_children_come_with_success(store: Store, worker: Worker) -> None:
    await add(store)
    children = (NewTask(kind="child", payload=b"1"), NewTask(kind="child", payload=b"2", delay=HOUR))
    verdict = await worker.run(Succeeded(children=children))
    first, second = [await read(store, child_id) for child_id in verdict.child_ids]
    assert (bytes(first.payload), first.state) == (b"1", State.READY)
    assert (bytes(second.payload), second.state) == (b"2", State.SCHEDULED)


async def test_children_know_their_parent_and_are_found_by_it(store: Store, worker: Worker) -> None:
    parent_id, other_id = await add_many(store, 2)
    outcome = Succeeded(children=(NewTask(kind="child"), NewTask(kind="child", limit_key="ada")))
    verdicts = [await worker.finish(claim, outcome) for claim in await worker.claim()]
    children = {verdict.id: list(verdict.child_ids) for verdict in verdicts}
    assert [(await read(store, child_id)).parent_id for child_id in children[other_id]] == [other_id] * 2
    assert (await read(store, parent_id)).parent_id is None
    for claim in await worker.claim("child"):
        await worker.finish(claim, OUTCOMES["failed"])
    (ended, *_) = children[parent_id]
    await store.retry([ended])
    assert await listed(store, parent_id=parent_id) == children[parent_id][::-1]
    assert await listed(store, parent_id=parent_id, states=FINAL) == [children[parent_id][1]]
    assert await listed(store, parent_id=ended) == []


async def test_children_can_be_claimed(store: Store, worker: Worker) -> None:
    await add(store)
    verdict = await worker.run(Succeeded(children=(NewTask(kind="child", queue="new queue"),)))
    assert await worker.claim_ids("child") == list(verdict.child_ids)


async def test_children_are_not_inserted_twice(store: Store, worker: Worker) -> None:
    await add(store)
    claim = await worker.claim_one()
    outcome = Succeeded(children=(NewTask(kind="child"),))
    verdict = await worker.finish(claim, outcome)
    again = await worker.finish(claim, outcome)
    assert again.state is State.SUCCEEDED
    assert await listed(store, kinds=("child",)) == list(verdict.child_ids)


async def test_children_of_one_settlement_given_twice_are_inserted_once(store: Store, worker: Worker) -> None:
    await add(store)
    fenced = settlement_of(await worker.claim_one(), Succeeded(children=(NewTask(kind="child"),)))
    verdicts = await store.finish([fenced, fenced])
    assert await listed(store, kinds=("child",)) == list(verdicts[0].child_ids)


async def test_a_stale_claim_has_no_children(store: Store, worker: Worker) -> None:
    await add(store)
    claim = await worker.claim_one()
    await store.reap([worker.node_id], 10)
    await worker.finish(claim, Succeeded(children=(NewTask(kind="child"),)))
    assert await listed(store, kinds=("child",)) == []


async def test_a_cancelled_task_has_no_children(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    verdict = await worker.finish(claim, Succeeded(children=(NewTask(kind="child"),)))
    assert (verdict.state, verdict.child_ids) == (State.CANCELLED, ())
    assert await listed(store, kinds=("child",)) == []


@pytest.mark.parametrize("on_conflict", ["return", "raise", "replace"])
@pytest.mark.parametrize("state", [State.READY, State.RUNNING])
async def test_a_child_whose_key_is_taken_stands_for_the_holder(
    store: Store, worker: Worker, state: State, on_conflict: OnConflict
) -> None:
    holder = await add_in_state(store, state, kind="child", key="a", payload=b"1")
    await add(store)
    children = (
        NewTask(kind="child", key="a", payload=b"2", on_conflict=on_conflict),
        NewTask(kind="child", key="b"),
    )
    verdict = await worker.run(Succeeded(children=children))
    assert verdict.state is State.SUCCEEDED
    assert verdict.child_ids[0] == holder
    assert verdict.child_ids[1] > holder
    assert bytes((await read(store, holder)).payload) == b"1"


async def test_a_child_may_have_the_key_that_its_parent_held(store: Store, worker: Worker) -> None:
    parent = await add(store, key="next")
    verdict = await worker.run(Succeeded(children=(NewTask(kind=KIND, key="next"),)))
    (child,) = verdict.child_ids
    assert child != parent
    assert await state_of(store, child) is State.READY


async def test_two_parents_with_the_same_child_have_one(store: Store, worker: Worker) -> None:
    await add_many(store, 2)
    outcome = Succeeded(children=(NewTask(kind="child", key="a"),))
    verdicts = await store.finish([settlement_of(claim, outcome) for claim in await worker.claim()])
    assert verdicts[0].child_ids == verdicts[1].child_ids
    assert await listed(store, kinds=("child",)) == list(verdicts[0].child_ids)
