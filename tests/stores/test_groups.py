"""Groups: counted from their tasks, ended once, and followed by what waits for them."""

from __future__ import annotations

import pytest
from tests.stores.actions import ERROR, HOUR, OUTCOMES, Worker, add, declare_limit, read, state_of, states

from synergon.errors import KeyConflict
from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.outcomes import Retrying, Succeeded
from synergon.model.tasks import NewTask
from synergon.stores.base import Store

WORK = NewTask(kind="work")
AFTER = NewTask(kind="after")


async def open_group(store: Store, number: int, then: NewTask | None = None) -> tuple[OpenedGroup, list[int]]:
    group = await store.open_group(NewGroup(name="all", tasks=(WORK,) * number, then=then))
    return group, [insertion.id for insertion in group.insertions]


async def look(store: Store, group_id: int) -> GroupRecord:
    (found,) = await store.groups([group_id])
    assert found is not None
    return found


async def test_a_group_is_counted_from_its_tasks(store: Store, worker: Worker) -> None:
    group, ids = await open_group(store, 4)
    (claim, _) = await worker.claim(limit=2)
    assert claim.group_id == group.id
    await worker.finish(claim, Succeeded())
    await store.cancel([ids[3]])
    found = await look(store, group.id)
    assert found.counts == {State.SUCCEEDED: 1, State.RUNNING: 1, State.READY: 1, State.CANCELLED: 1}
    assert (found.name, found.open, found.ended_at, found.then_id) == ("all", 2, None, None)
    assert (await read(store, ids[0])).group_id == group.id
    assert await store.groups([group.id + 4711]) == [None]


@pytest.mark.parametrize("way", ["succeed", "fail", "cancel", "delete", "expire", "crash"])
async def test_whatever_takes_the_last_one_ends_the_group_and_starts_what_follows(store: Store, way: str) -> None:
    task = NewTask(kind="work", expires_in=0) if way == "expire" else WORK
    group = await store.open_group(NewGroup(name="all", tasks=(task,), then=AFTER))
    assert group.then is not None
    assert group.then.state is State.WAITING
    assert (await read(store, group.then.id)).is_dependent
    member = group.insertions[0].id
    node = await Worker.start(store, "lost")
    match way:
        case "succeed":
            await node.run(Succeeded())
        case "fail":
            await node.run(OUTCOMES["failed"])
        case "cancel":
            await store.cancel([member])
        case "delete":
            await store.delete([member])
        case "expire":
            assert (await store.wake(10)).kinds == {"after": 1}
        case _:
            await store.cancel([(await node.claim_one()).id])
            (reaped,) = await store.reap(["lost"], 10)
            assert (reaped.state, reaped.released) == (State.CANCELLED, ("after",))
    found = await look(store, group.id)
    assert found.ended_at is not None
    assert (found.open, found.then_id) == (0, group.then.id)
    then = await read(store, group.then.id)
    assert (then.state, then.is_dependent, then.group_id) == (State.READY, False, None)


async def test_a_task_that_goes_on_keeps_its_group_open(store: Store, worker: Worker) -> None:
    group, _ = await open_group(store, 1)
    await worker.run(OUTCOMES["retrying"])
    assert (await look(store, group.id)).ended_at is None


async def test_a_child_in_the_same_group_keeps_it_open(store: Store, worker: Worker) -> None:
    group, _ = await open_group(store, 1, then=AFTER)
    child = NewTask(kind="work", group_id=group.id)
    await worker.run(Succeeded(children=(child,)))
    assert (await look(store, group.id)).ended_at is None
    await worker.run(Succeeded())
    assert (await look(store, group.id)).ended_at is not None


async def test_an_empty_group_has_ended_at_once(store: Store) -> None:
    group = await store.open_group(NewGroup(name="none", tasks=(), then=AFTER))
    assert (await look(store, group.id)).ended_at is not None
    assert group.then is not None
    assert group.then.state is State.READY
    assert await state_of(store, group.then.id) is State.READY


async def test_a_retry_later_starts_neither_the_group_nor_its_follower_again(store: Store, worker: Worker) -> None:
    group, ids = await open_group(store, 1, then=AFTER)
    await worker.run(OUTCOMES["failed"])
    ended_at = (await look(store, group.id)).ended_at
    (after,) = await worker.claim("after")
    await worker.finish(after, Succeeded())
    await store.retry(ids)
    assert (await read(store, ids[0])).group_id == group.id
    assert (await look(store, group.id)).open == 1
    await worker.run(Succeeded())
    assert (await look(store, group.id)).ended_at == ended_at
    assert await worker.claim("after") == []


async def test_what_follows_keeps_its_own_time_and_line(store: Store, worker: Worker) -> None:
    await declare_limit(store, "key:after", 1)
    taken = await add(store, kind="after", limit_key="ada", priority=1)
    for then, state in [
        (NewTask(kind="after", delay=HOUR), State.SCHEDULED),
        (NewTask(kind="after", limit_key="ada"), State.WAITING),
    ]:
        group, _ = await open_group(store, 1, then=then)
        await worker.run(Succeeded())
        assert group.then is not None
        assert await states(store, [taken, group.then.id]) == [State.READY, state]
        assert not (await read(store, group.then.id)).is_dependent


async def test_what_follows_takes_no_place_in_its_line_before_its_time(store: Store) -> None:
    await declare_limit(store, "key:after", 1)
    await open_group(store, 1, then=NewTask(kind="after", limit_key="ada", priority=9))
    assert await state_of(store, await add(store, kind="after", limit_key="ada")) is State.READY


async def test_what_follows_can_be_cancelled_before(store: Store, worker: Worker) -> None:
    group, _ = await open_group(store, 1, then=AFTER)
    assert group.then is not None
    await store.cancel([group.then.id])
    await worker.run(Succeeded())
    assert await state_of(store, group.then.id) is State.CANCELLED


async def test_a_group_is_cancelled_with_all_that_has_not_ended(store: Store, worker: Worker) -> None:
    group, ids = await open_group(store, 4, then=AFTER)
    first, second = await worker.claim(limit=2)
    await worker.finish(first, Succeeded())
    moved = await store.cancel_group(group.id, "enough")
    assert sorted((move.id, move.state) for move in moved) == [
        (ids[1], State.RUNNING),
        (ids[2], State.CANCELLED),
        (ids[3], State.CANCELLED),
    ]
    assert (await look(store, group.id)).ended_at is None
    await worker.finish(second, Succeeded())
    assert (await look(store, group.id)).ended_at is not None
    assert len(await worker.claim("after")) == 1


async def test_a_live_task_that_holds_the_key_is_not_a_member(store: Store) -> None:
    holder = await add(store, key="k")
    for on_conflict in ("return", "replace"):
        task = NewTask(kind="work", key="k", on_conflict=on_conflict)
        group = await store.open_group(NewGroup(name="all", tasks=(task,)))
        assert [(one.id, one.created) for one in group.insertions] == [(holder, False)]
        assert (await look(store, group.id)).ended_at is not None
        assert (await read(store, holder)).group_id is None
    with pytest.raises(KeyConflict):
        await store.open_group(NewGroup(name="all", tasks=(WORK, NewTask(kind="work", key="k", on_conflict="raise"))))
    assert len(await store.counts()) == 1


async def test_a_member_that_is_replaced_stays_a_member(store: Store) -> None:
    group = await store.open_group(NewGroup(name="all", tasks=(NewTask(kind="work", key="k"),)))
    await store.insert([NewTask(kind="work", key="k", on_conflict="replace", payload=b"2")])
    found = await look(store, group.id)
    assert (found.open, found.ended_at) == (1, None)


async def test_a_member_that_comes_back_at_once_ends_the_group_only_once_it_is_done(
    store: Store, worker: Worker
) -> None:
    group, _ = await open_group(store, 1)
    await worker.run(Retrying(delay=0, error=ERROR))
    assert (await look(store, group.id)).ended_at is None
    await worker.run(Succeeded())
    assert (await look(store, group.id)).ended_at is not None
