"""Ended tasks: what stays of them, and when they go."""

from __future__ import annotations

import pytest
from tests.stores.actions import (
    HOUR,
    KIND,
    MILLISECOND,
    OUTCOMES,
    STATES,
    Worker,
    add,
    add_in_state,
    add_many,
    listed,
    pass_time,
    read,
    state_of,
)

from synergon.model.dependencies import Need
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import FINAL, State
from synergon.model.outcomes import Succeeded
from synergon.model.tasks import Cutoffs, NewTask
from synergon.stores.base import Store
from synergon.stores.rules import history

EVERYTHING = Cutoffs(succeeded=0, failed=0, cancelled=0)


def _only(state: State, age: int) -> Cutoffs:
    return Cutoffs(**{state.value: age})


async def _age(store: Store) -> None:
    """Let what has ended be older than nothing, on clocks that tick in milliseconds too."""
    await pass_time(store, MILLISECOND)


async def test_an_ended_task_keeps_all_that_was_known_of_it(store: Store, worker: Worker) -> None:
    task_id = await add(
        store,
        queue="mail",
        payload=b'{"to":"a"}',
        priority=7,
        max_attempts=3,
        key="k",
        tags=("t",),
        meta=b'{"m":1}',
        overrides=b"{}",
    )
    before = await read(store, task_id)
    await worker.run(OUTCOMES["succeeded"])
    after = await read(store, task_id)
    for name in ("kind", "queue", "payload", "priority", "max_attempts", "key", "tags", "meta", "overrides"):
        assert getattr(after, name) == getattr(before, name), name
    assert (after.run_at, after.enqueued_at) == (before.run_at, before.enqueued_at)
    assert (after.node_id, after.attempts, after.claim_no, after.result) == (worker.node_id, 1, 1, 42)


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_ended_tasks_older_than_their_cutoff_are_deleted(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    await _age(store)
    assert await store.prune(_only(state, 0), 10) == 1
    assert await store.get([task_id]) == [None]
    assert await listed(store) == []
    assert await store.counts() == {}


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_younger_ones_stay(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    assert await store.prune(_only(state, HOUR), 10) == 0
    assert await state_of(store, task_id) is state


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_cutoff_is_for_its_own_state_only(store: Store, state: State) -> None:
    ids = {other: await add_in_state(store, other) for other in FINAL}
    await _age(store)
    assert await store.prune(_only(state, 0), 10) == 1
    assert await listed(store) == sorted((ids[other] for other in FINAL if other is not state), reverse=True)


async def test_no_cutoff_keeps_everything(store: Store) -> None:
    for state in FINAL:
        await add_in_state(store, state)
    await _age(store)
    assert await store.prune(Cutoffs(), 10) == 0
    assert len(await listed(store)) == 3


@pytest.mark.parametrize("state", [state for state in STATES if state not in FINAL])
async def test_live_tasks_are_never_pruned(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    await _age(store)
    assert await store.prune(EVERYTHING, 10) == 0
    assert await state_of(store, task_id) is state


async def test_no_more_than_the_limit_is_pruned(store: Store) -> None:
    ids = await add_many(store, 5)
    await store.cancel(ids)
    await _age(store)
    assert [await store.prune(EVERYTHING, 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_the_limit_is_for_all_states_together(store: Store) -> None:
    for state in FINAL:
        for _ in range(2):
            await add_in_state(store, state)
    await _age(store)
    assert await store.prune(EVERYTHING, 4) == 4
    assert len(await listed(store)) == 2
    assert await store.prune(EVERYTHING, 4) == 2


async def test_the_oldest_go_first(store: Store) -> None:
    old, new = await add_many(store, 2)
    await store.cancel([new])
    await _age(store)
    await store.cancel([old])
    await _age(store)
    await store.prune(EVERYTHING, 1)
    assert await listed(store) == [old]


async def test_a_retried_task_is_not_pruned(store: Store) -> None:
    task_id = await add_in_state(store, State.FAILED)
    await store.retry([task_id])
    await _age(store)
    assert await store.prune(EVERYTHING, 10) == 0
    assert await state_of(store, task_id) is State.READY


async def test_a_task_that_ended_twice_is_as_old_as_its_last_end(store: Store) -> None:
    again, other = await add_many(store, 2)
    await store.cancel([again])
    await store.cancel([other])
    await store.retry([again])
    await _age(store)
    await store.cancel([again])
    await _age(store)
    await store.prune(EVERYTHING, 1)
    assert await listed(store) == [again]


async def test_pruning_does_not_free_the_key_of_a_live_task(store: Store) -> None:
    await add_in_state(store, State.SUCCEEDED, key="a")
    holder = await add(store, key="a")
    await _age(store)
    await store.prune(EVERYTHING, 10)
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a")])
    assert (insertion.id, insertion.created) == (holder, False)


async def test_a_pruned_task_cannot_be_retried(store: Store) -> None:
    task_id = await add_in_state(store, State.FAILED)
    await _age(store)
    await store.prune(EVERYTHING, 10)
    (moved,) = await store.retry([task_id])
    assert (moved.done, moved.state) == (False, None)


# ---------------------------------------------------------------- groups


async def _open_group(store: Store, number: int, then: NewTask | None = None) -> tuple[int, list[int]]:
    group = await store.open_group(NewGroup(name="all", tasks=(NewTask(kind=KIND),) * number, then=then))
    return group.id, [insertion.id for insertion in group.insertions]


@pytest.mark.parametrize("way", ["pruned", "deleted", "never there"])
async def test_an_ended_group_goes_when_no_task_of_it_is_left(store: Store, way: str) -> None:
    group_id, ids = await _open_group(store, 0 if way == "never there" else 2)
    if way == "deleted":
        await store.delete(ids)
    else:
        await store.cancel(ids)
    await _age(store)
    await store.prune(EVERYTHING, 10)
    assert await store.groups([group_id]) == [None]


async def test_a_group_stays_with_its_tasks_until_its_follower_has_ended(store: Store) -> None:
    group_id, ids = await _open_group(store, 2, then=NewTask(kind=KIND))
    await store.cancel(ids)
    await _age(store)
    assert await store.prune(EVERYTHING, 10) == 0
    (group,) = await store.groups([group_id])
    assert group is not None
    assert group.counts == {State.CANCELLED: 2}
    assert group.then_id is not None
    await store.delete([group.then_id])
    await store.prune(EVERYTHING, 10)
    assert await store.groups([group_id]) == [None]


async def test_a_group_is_kept_as_long_as_its_own_state_says(store: Store) -> None:
    group_id, ids = await _open_group(store, 2)
    await store.cancel(ids[:1])
    worker = await Worker.start(store)
    await worker.run(Succeeded())
    await _age(store)
    assert await store.prune(Cutoffs(succeeded=0, failed=0), 10) == 0
    assert await store.prune(Cutoffs(cancelled=HOUR), 10) == 0
    assert await store.prune(Cutoffs(cancelled=0), 10) == 2
    assert await store.groups([group_id]) == [None]


async def test_fewer_than_the_limit_are_pruned_only_if_nothing_is_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "GROUPS_AT_ONCE", 2)
    groups = [await _open_group(store, number) for number in (1, 0, 3, 1, 1)]
    await store.cancel([task_id for _, ids in groups for task_id in ids])
    await _age(store)
    assert await store.prune(EVERYTHING, 100) == 6
    assert await store.groups([group_id for group_id, _ in groups]) == [None] * 5


async def test_a_group_with_more_tasks_than_the_limit_is_pruned_as_a_whole(store: Store) -> None:
    group_id, ids = await _open_group(store, 3)
    await store.cancel(ids)
    await _age(store)
    assert await store.prune(EVERYTHING, 2) == 3
    assert await store.groups([group_id]) == [None]


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_tasks_that_a_live_one_needs_stay_and_keep_no_other_from_being_pruned(store: Store, state: State) -> None:
    needed = [await add_in_state(store, state) for _ in range(9)]
    other = await add_in_state(store, state)
    after = tuple(Need(task_id=task_id) for task_id in needed)
    await store.insert([NewTask(kind="later", delay=HOUR, after=after, if_dependency_fails="run")])
    await _age(store)
    assert await store.prune(EVERYTHING, 2) == 1
    assert await store.get([other]) == [None]
    assert None not in await store.get(needed)
