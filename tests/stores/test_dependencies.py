"""Dependencies: a task waits until all that it needs have ended, and no longer."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    HOUR,
    OUTCOMES,
    Worker,
    add,
    declare_limit,
    pass_time,
    read,
    settlement_of,
    state_of,
    states,
)

from synergon.errors import TaskNotFound
from synergon.model.dependencies import DELETED, IfFails, Need
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import Outcome, Succeeded
from synergon.model.tasks import Cutoffs, NewTask
from synergon.options.overrides import Overrides
from synergon.stores.base import Store

AFTER = NewTask(kind="after")
EVERYTHING = Cutoffs(succeeded=0, failed=0, cancelled=0)


async def add_after(store: Store, *needs: int, if_fails: IfFails = "cancel", **fields: object) -> int:
    """A task that depends on these."""
    after = tuple(Need(task_id=task_id) for task_id in needs)
    task = replace(AFTER, after=after, if_dependency_fails=if_fails, **fields)
    (inserted,) = await store.insert([task])
    return inserted.id


async def end(store: Store, worker: Worker, task_id: int, way: str) -> None:
    """End a ready task of the kind `work`."""
    match way:
        case "succeed":
            await worker.run(Succeeded(result=b"1"))
        case "fail":
            await worker.run(OUTCOMES["failed"])
        case "cancel":
            await store.cancel([task_id])
        case "delete":
            await store.delete([task_id])
        case "expire":
            await store.wake(10)
        case _:
            lost = await Worker.start(store, "lost")
            await store.cancel([(await lost.claim_one()).id])
            await store.reap(["lost"], 10)


WAYS = ["succeed", "fail", "cancel", "delete", "expire", "crash"]


async def chain(store: Store, length: int, if_fails: IfFails = "cancel") -> list[int]:
    """A flow of this many steps, one after the other."""
    steps = [
        NewTask(kind="work", after=() if index == 0 else (Need(step=index - 1),), if_dependency_fails=if_fails)
        for index in range(length)
    ]
    opened = await store.open_group(NewGroup(name="chain", tasks=tuple(steps), is_flow=True))
    return [insertion.id for insertion in opened.insertions]


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("if_fails", ["cancel", "run"])
async def test_whatever_ends_the_last_dependency_decides_about_the_task(
    store: Store, worker: Worker, way: str, if_fails: IfFails
) -> None:
    first, second = await add(store), await add(store, expires_in=0 if way == "expire" else None)
    after = await add_after(store, first, second, if_fails=if_fails)
    assert await state_of(store, after) is State.WAITING
    (claim,) = await worker.claim(limit=1)
    assert claim.id == first
    await worker.finish(claim, Succeeded())
    assert await state_of(store, after) is State.WAITING
    await end(store, worker, second, way)
    found = await read(store, after)
    if way == "succeed" or if_fails == "run":
        assert (found.state, found.is_dependent) == (State.READY, False)
        (claim,) = await worker.claim("after")
        assert claim.has_dependencies
    else:
        assert (found.state, found.reason) == (State.CANCELLED, Reason.DEPENDENCY)


async def test_the_answer_says_what_the_end_has_caused(store: Store, worker: Worker) -> None:
    first, second = await add(store), await add(store)
    ready, doomed = await add_after(store, first), await add_after(store, second)
    last = await add_after(store, doomed)
    one, two = await worker.claim(limit=2)
    assert one.has_dependents
    verdict = await worker.finish(one, Succeeded())
    assert (verdict.released, verdict.ended) == (("after",), ())
    verdict = await worker.finish(two, OUTCOMES["failed"])
    assert (verdict.released, sorted(verdict.ended)) == ((), [doomed, last])
    assert await states(store, [ready, doomed, last]) == [State.READY, State.CANCELLED, State.CANCELLED]


async def test_a_cancel_reaches_all_that_depend_on_it(store: Store) -> None:
    first = await add(store)
    second = await add_after(store, first)
    third = await add_after(store, second)
    anyway = await add_after(store, third, if_fails="run")
    (moved,) = await store.cancel([first])
    assert moved.follow_ups is not None
    assert (sorted(moved.follow_ups.ended), moved.follow_ups.ready) == ([second, third], ("after",))
    assert await states(store, [second, third, anyway]) == [State.CANCELLED, State.CANCELLED, State.READY]


async def test_a_released_task_keeps_its_own_time_and_key_queue(store: Store, worker: Worker) -> None:
    await declare_limit(store, "key:after", 1)
    taken = await add(store, kind="after", limit_key="ada", priority=1)
    needed = await add(store)
    later = await add_after(store, needed, delay=HOUR)
    queued = await add_after(store, needed, limit_key="ada", priority=9)
    assert await state_of(store, taken) is State.READY
    await worker.run(Succeeded())
    assert await states(store, [later, queued, taken]) == [State.SCHEDULED, State.READY, State.WAITING]


async def test_a_task_may_end_before_what_it_needs(store: Store, worker: Worker) -> None:
    needed = await add(store)
    ids = [await add_after(store, needed) for _ in range(2)]
    await store.cancel(ids[:1])
    await store.delete(ids[1:])
    await worker.run(Succeeded())
    assert await state_of(store, ids[0]) is State.CANCELLED
    assert await store.get(ids[1:]) == [None]


async def test_an_attempt_that_runs_again_ends_nothing(store: Store, worker: Worker) -> None:
    after = await add_after(store, await add(store))
    await worker.run(OUTCOMES["retrying"])
    assert await state_of(store, after) is State.WAITING


async def test_an_outcome_that_is_sent_twice_releases_once(store: Store, worker: Worker) -> None:
    after = await add_after(store, await add(store))
    claim = await worker.claim_one()
    for _ in range(2):
        await worker.finish(claim, Succeeded())
    assert await state_of(store, after) is State.READY


# ---------------------------------------------------------------- inserts


async def test_a_dependency_that_has_ended_counts_at_once(store: Store, worker: Worker) -> None:
    succeeded = await add(store)
    await worker.run(Succeeded())
    failed = await add(store)
    await worker.run(OUTCOMES["failed"])
    assert await state_of(store, await add_after(store, succeeded)) is State.READY
    assert await state_of(store, await add_after(store, failed, if_fails="run")) is State.READY
    doomed = await add_after(store, succeeded, failed)
    last = await add_after(store, doomed)
    assert await states(store, [doomed, last]) == [State.SCHEDULED, State.WAITING]
    woken = await store.wake(10)
    assert sorted(woken.expired) == [doomed, last]
    assert [(await read(store, task_id)).reason for task_id in (doomed, last)] == [Reason.DEPENDENCY] * 2


async def test_an_unknown_or_pruned_id_is_an_error_and_nothing_is_stored(store: Store, worker: Worker) -> None:
    gone = await add(store)
    await worker.run(Succeeded())
    await pass_time(store, 2)
    await store.prune(EVERYTHING, 10)
    for missing in (gone, 4711):
        with pytest.raises(TaskNotFound, match=rf"names task {missing}, which does not exist.*nothing was stored"):
            await store.insert([NewTask(kind="beside"), replace(AFTER, after=(Need(task_id=missing),))])
        with pytest.raises(TaskNotFound):
            await store.open_group(NewGroup(name="all", tasks=(replace(AFTER, after=(Need(task_id=missing),)),)))
    assert await store.counts() == {}


async def test_a_task_that_is_named_twice_is_one_dependency(store: Store, worker: Worker) -> None:
    needed = await add(store)
    after = await add_after(store, needed, needed)
    ((dependency,),) = await store.dependencies([after])
    assert (dependency.task_id, dependency.state, dependency.is_open) == (needed, State.READY, True)
    await worker.run(Succeeded())
    assert await state_of(store, after) is State.READY


async def test_a_child_may_depend_on_tasks_and_one_that_is_gone_has_not_succeeded(store: Store, worker: Worker) -> None:
    await add(store)
    open_id = await add(store, kind="open")
    needs = [Need(task_id=open_id)], [Need(task_id=4711)]
    children = tuple(replace(AFTER, after=tuple(after)) for after in needs)
    verdict = await worker.finish(await worker.claim_one(), Succeeded(children=children))
    assert await states(store, verdict.child_ids) == [State.WAITING, State.SCHEDULED]
    await store.wake(10)
    assert await states(store, verdict.child_ids) == [State.WAITING, State.CANCELLED]
    await store.cancel([open_id])
    assert await state_of(store, verdict.child_ids[0]) is State.CANCELLED


async def test_a_replaced_task_keeps_its_dependents_and_not_its_dependencies(store: Store, worker: Worker) -> None:
    needed = await add(store)
    middle = await add_after(store, needed, key="k")
    last = await add_after(store, middle)
    (inserted,) = await store.insert([NewTask(kind="after", key="k", on_conflict="replace")])
    assert (inserted.id, inserted.state) == (middle, State.READY)
    assert await store.dependencies([middle]) == [[]]
    (claim,) = await worker.claim("after")
    await worker.finish(claim, Succeeded())
    assert await state_of(store, last) is State.READY


# ---------------------------------------------------------------- flows


async def test_a_flow_runs_step_by_step_and_ends_with_its_last_step(store: Store, worker: Worker) -> None:
    ids = await chain(store, 3)
    for done in range(3):
        assert await states(store, ids[done:]) == [State.READY, *[State.WAITING] * (2 - done)]
        claim = await worker.claim_one()
        assert claim.id == ids[done]
        await worker.finish(claim, Succeeded(result=str(done).encode()))
    (first, second, third) = await store.dependencies(ids, with_results=True)
    assert [[one.result for one in found] for found in (first, second, third)] == [[], [0], [1]]
    (group,) = await store.groups([claim.group_id or 0])
    assert group is not None
    assert (group.is_flow, group.state, group.then_id) == (True, State.SUCCEEDED, ids[2])


async def test_the_items_of_a_map_are_waited_for(store: Store, worker: Worker) -> None:
    mapper = NewTask(kind="work")
    after = replace(AFTER, after=(Need(step=0),))
    opened = await store.open_group(NewGroup(name="all", tasks=(mapper, after), is_flow=True))
    group_id, after_id = opened.id, opened.insertions[1].id
    items = tuple(NewTask(kind="item", group_id=group_id) for _ in range(2))
    claim = await worker.claim_one()
    verdict = await worker.finish(claim, Succeeded(result=b"2", children=items, is_map=True))
    assert await state_of(store, after_id) is State.WAITING
    for index in (1, 0):
        (item,) = await worker.claim("item", limit=1)
        await worker.finish(item, Succeeded(result=str(index).encode()))
    assert await state_of(store, after_id) is State.READY
    ((own, *found),) = await store.dependencies([after_id], with_results=True)
    assert (own.task_id, own.item, own.position) == (claim.id, None, 0)
    assert [(one.task_id, one.item, one.position) for one in found] == [
        (item_id, index, 0) for index, item_id in enumerate(verdict.child_ids)
    ]


async def finish_map(worker: Worker, *items: NewTask) -> tuple[int, ...]:
    """End the next map: it creates these items."""
    (claim,) = await worker.claim("work", limit=1)
    return (await worker.finish(claim, Succeeded(result=b"1", children=items, is_map=True))).child_ids


async def finish_item(worker: Worker, outcome: Outcome) -> None:
    """End the next item."""
    (claim,) = await worker.claim("item", limit=1)
    await worker.finish(claim, outcome)


async def test_two_maps_may_share_an_item_and_feed_one_step(store: Store, worker: Worker) -> None:
    after = await add_after(store, await add(store), await add(store))
    first = await finish_map(worker, NewTask(kind="item", key="a"), NewTask(kind="item", key="b"))
    second = await finish_map(worker, NewTask(kind="item", key="b"), NewTask(kind="item", key="c"))
    assert second[0] == first[1], "there is one task for both"
    for number in range(3):
        assert await state_of(store, after) is State.WAITING
        await finish_item(worker, Succeeded(result=str(number).encode()))
    assert await state_of(store, after) is State.READY
    (needs,) = await store.dependencies([after], with_results=True)
    found = [one for one in needs if one.item is not None]
    assert [(one.position, one.item, one.task_id, bytes(one.result_json or b"")) for one in found] == [
        (0, 0, first[0], b"0"),
        (0, 1, first[1], b"1"),
        (1, 0, first[1], b"1"),
        (1, 1, second[1], b"2"),
    ]


async def test_a_shared_item_that_fails_is_retried_for_both_maps(store: Store, worker: Worker) -> None:
    after = await add_after(store, await add(store), await add(store))
    for _ in range(2):
        (shared,) = await finish_map(worker, NewTask(kind="item", key="a"))
    await finish_item(worker, OUTCOMES["failed"])
    assert await state_of(store, after) is State.CANCELLED
    await store.retry([shared])
    assert await state_of(store, after) is State.WAITING
    await finish_item(worker, Succeeded())
    assert await state_of(store, after) is State.READY


async def test_an_item_whose_key_an_ended_task_holds_is_not_waited_for(store: Store, worker: Worker) -> None:
    held = NewTask(kind="item", key="a", unique_for=HOUR)
    await store.insert([held])
    await finish_item(worker, Succeeded(result=b"7"))
    after = await add_after(store, await add(store))
    await finish_map(worker, held)
    assert await state_of(store, after) is State.READY
    (needs,) = await store.dependencies([after], with_results=True)
    assert [bytes(one.result_json or b"") for one in needs if one.item is not None] == [b"7"]


async def test_a_map_fails_if_a_task_that_waits_for_it_holds_the_key_of_an_item(store: Store, worker: Worker) -> None:
    for are_neighbours in (True, False):
        map_id = await add(store)
        after = await add_after(store, map_id, key="a" if are_neighbours else None)
        last = await add_after(store, after, key=None if are_neighbours else "a")
        items = (NewTask(kind="after", key="b"), NewTask(kind="after", key="a"))
        assert await finish_map(worker, *items) == (), "nothing was created"
        record = await read(store, map_id)
        assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
        (error,) = record.errors
        assert (error.type, error.attempt) == ("KeyConflict", 1)
        assert f"task {after if are_neighbours else last} of kind 'after' with the key 'a'" in error.message
        assert await states(store, [after, last]) == [State.CANCELLED, State.CANCELLED]


async def test_of_two_maps_that_end_together_the_second_does_not_close_a_circle(store: Store, worker: Worker) -> None:
    first, second = await add(store), await add(store)
    one, two = await add_after(store, first, key="one"), await add_after(store, second, key="two")
    claims = await worker.claim("work", limit=2)
    children = {first: NewTask(kind="after", key="two"), second: NewTask(kind="after", key="one")}
    await store.finish(
        [settlement_of(claim, Succeeded(result=b"1", children=(children[claim.id],), is_map=True)) for claim in claims]
    )
    assert set(await states(store, [one, two])) == {State.READY, State.WAITING}


async def test_a_step_is_cancelled_if_the_task_of_an_item_has_failed_before(store: Store, worker: Worker) -> None:
    held = NewTask(kind="item", key="a", unique_for=HOUR)
    await store.insert([held])
    await finish_item(worker, OUTCOMES["failed"])
    after = await add_after(store, await add(store))
    await finish_map(worker, held)
    assert await state_of(store, after) is State.CANCELLED


async def test_a_map_without_items_releases_at_once(store: Store, worker: Worker) -> None:
    opened = await store.open_group(
        NewGroup(name="all", tasks=(NewTask(kind="work"), replace(AFTER, after=(Need(step=0),))), is_flow=True)
    )
    await worker.run(Succeeded(result=b"0", is_map=True))
    assert await state_of(store, opened.insertions[1].id) is State.READY


# ---------------------------------------------------------------- retries


async def test_a_retry_brings_back_what_was_cancelled_because_of_it(store: Store, worker: Worker) -> None:
    ids = await chain(store, 4)
    await worker.run(OUTCOMES["failed"])
    (record, *_) = [await read(store, task_id) for task_id in ids]
    (group,) = await store.groups([record.group_id or 0])
    assert group is not None
    assert group.state is State.FAILED
    assert await states(store, ids) == [State.FAILED, *[State.CANCELLED] * 3]
    (moved,) = await store.retry(ids[:1])
    assert (moved.done, moved.state) == (True, State.READY)
    assert await states(store, ids) == [State.READY, *[State.WAITING] * 3]
    (group,) = await store.groups([record.group_id or 0])
    assert group is not None
    assert (group.state, group.ended_at) == (None, None)
    for _ in ids:
        await worker.run(Succeeded())
    assert await states(store, ids) == [State.SUCCEEDED] * 4


async def test_what_another_failure_has_cancelled_too_stays_cancelled(store: Store, worker: Worker) -> None:
    first, second = await add(store), await add(store)
    both = await add_after(store, first, second)
    last = await add_after(store, both)
    anyway = await add_after(store, first, second, if_fails="run")
    for claim in await worker.claim(limit=2):
        await worker.finish(claim, OUTCOMES["failed"])
    (claim,) = await worker.claim("after")
    await worker.finish(claim, Succeeded())
    await store.retry([first])
    assert await states(store, [both, last, anyway]) == [State.CANCELLED, State.CANCELLED, State.SUCCEEDED]


@pytest.mark.parametrize("when", ["while it waits", "while it runs", "after its success"])
async def test_failures_that_are_retried_one_after_the_other_bring_it_back(
    store: Store, worker: Worker, when: str
) -> None:
    first, second = await add(store), await add(store)
    both = await add_after(store, first, second)
    last = await add_after(store, both)
    anyway = await add_after(store, first, second, if_fails="run")
    for claim in await worker.claim(limit=2):
        await worker.finish(claim, OUTCOMES["failed"])
    (claim,) = await worker.claim("after")
    await worker.finish(claim, Succeeded())
    await store.retry([first])
    claims = [] if when == "while it waits" else await worker.claim(limit=1)
    if when == "after its success":
        await worker.finish(claims.pop(), Succeeded())
    await store.retry([second])
    assert await states(store, [both, last, anyway]) == [State.WAITING, State.WAITING, State.SUCCEEDED]
    for claim in [*claims, *await worker.claim(limit=2)]:
        await worker.finish(claim, Succeeded())
    assert await states(store, [both, last, anyway]) == [State.READY, State.WAITING, State.SUCCEEDED]


async def test_a_failure_that_is_retried_in_vain_still_prevents_it(store: Store, worker: Worker) -> None:
    first, second = await add(store), await add(store)
    both = await add_after(store, first, second)
    for claim in await worker.claim(limit=2):
        await worker.finish(claim, OUTCOMES["failed"])
    await store.retry([first])
    await worker.run(OUTCOMES["failed"])
    await store.retry([second])
    assert await state_of(store, both) is State.CANCELLED
    await worker.run(Succeeded())
    await store.retry([first])
    assert await state_of(store, both) is State.WAITING


async def test_a_cancelled_task_that_is_retried_waits_for_one_that_runs_again(store: Store, worker: Worker) -> None:
    needed = await add(store)
    after = await add_after(store, needed)
    await store.cancel([after])
    await worker.run(OUTCOMES["failed"])
    await store.retry([needed])
    await store.retry([after])
    assert await state_of(store, after) is State.WAITING
    await worker.run(Succeeded())
    assert await state_of(store, after) is State.READY


async def test_both_failures_retried_together_bring_it_back(store: Store, worker: Worker) -> None:
    first, second = await add(store), await add(store)
    both = await add_after(store, first, second)
    for claim in await worker.claim(limit=2):
        await worker.finish(claim, OUTCOMES["failed"])
    await store.retry([first, second])
    assert await state_of(store, both) is State.WAITING
    for claim in await worker.claim(limit=2):
        await worker.finish(claim, Succeeded())
    assert await state_of(store, both) is State.READY


async def test_a_task_that_was_cancelled_itself_does_not_come_back(store: Store, worker: Worker) -> None:
    needed = await add(store)
    after = await add_after(store, needed)
    await store.cancel([after])
    await worker.run(OUTCOMES["failed"])
    await store.retry([needed])
    assert await state_of(store, after) is State.CANCELLED


async def test_what_has_not_started_waits_for_a_retried_task_again(store: Store, worker: Worker) -> None:
    needed = await add(store)
    ready, running = await add_after(store, needed), await add_after(store, needed, priority=1)
    await worker.run(Succeeded())
    (claim,) = await worker.claim("after", limit=1)
    assert claim.id == running
    await store.retry([needed])
    assert await states(store, [ready, running]) == [State.WAITING, State.RUNNING]
    await worker.finish(claim, Succeeded())
    await worker.run(Succeeded())
    assert await state_of(store, ready) is State.READY


async def test_a_map_is_retried_unless_it_has_succeeded(store: Store, worker: Worker) -> None:
    task = NewTask(kind="work", overrides=msgspec.json.encode(Overrides(item=NewTask(kind="item"))))
    failed, succeeded = [entry.id for entry in await store.insert([task, task])]
    one, other = await worker.claim(limit=2)
    await worker.finish(one, OUTCOMES["failed"])
    await worker.finish(other, Succeeded(result=b"0", is_map=True))
    first, second = await store.retry([failed, succeeded])
    assert (first.done, first.is_map, first.state) == (True, False, State.READY)
    assert (second.done, second.is_map, second.state) == (False, True, State.SUCCEEDED)
    assert await states(store, [failed, succeeded]) == [State.READY, State.SUCCEEDED]


@pytest.mark.parametrize("if_fails", ["cancel", "run"])
@pytest.mark.parametrize("way", ["live", "succeed", "fail"])
async def test_a_retried_task_that_ended_while_it_waited_waits_again(
    store: Store, worker: Worker, way: str, if_fails: IfFails
) -> None:
    first = await add(store)
    after = await add_after(store, first, if_fails=if_fails)
    await store.cancel([after])
    if way != "live":
        await end(store, worker, first, way)
    (moved,) = await store.retry([after])
    if way == "live":
        assert (moved.done, moved.state) == (True, State.WAITING)
        assert await worker.claim("after") == []
        await worker.run(Succeeded())
    assert await state_of(store, after) is State.READY  # an operator may run it in spite of a failure


async def test_one_whose_key_is_taken_stays_cancelled_with_all_behind_it(store: Store, worker: Worker) -> None:
    needed = await add(store)
    middle = await add_after(store, needed, key="k")
    last = await add_after(store, middle)
    await worker.run(OUTCOMES["failed"])
    await add(store, kind="after", key="k")
    await store.retry([needed])
    assert await states(store, [middle, last]) == [State.CANCELLED] * 2


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_retry_of_a_flow_brings_back_a_step_whose_key_was_taken(
    store: Store, worker: Worker, has_ended: bool
) -> None:
    steps = (
        NewTask(kind="work"),
        NewTask(kind="after", key="k", after=(Need(step=0),)),
        NewTask(kind="after", after=(Need(step=1),)),
    )
    flow = await store.open_group(NewGroup(name="keyed", tasks=steps, is_flow=True))
    first, *behind = [insertion.id for insertion in flow.insertions]
    await worker.run(OUTCOMES["failed"])
    holder = await add(store, kind="after", key="k")
    assert [moved.id for moved in await store.retry_flow(flow.id)] == [first]
    if has_ended:
        await worker.run(Succeeded())
    (held,) = await store.retry_flow(flow.id)
    assert (held.id, held.done, held.key_holder) == (behind[0], False, holder)
    assert await states(store, behind) == [State.CANCELLED] * 2
    await store.cancel([holder])
    assert [(moved.id, moved.done) for moved in await store.retry_flow(flow.id)] == [(behind[0], True)]
    if not has_ended:
        assert await states(store, behind) == [State.WAITING] * 2
        await worker.run(Succeeded())
    assert await states(store, behind) == [State.READY, State.WAITING]
    assert await store.retry_flow(flow.id) == []


# ---------------------------------------------------------------- history


async def test_what_a_live_task_depends_on_is_neither_pruned_nor_deleted(store: Store, worker: Worker) -> None:
    needed = await add(store)
    await worker.run(Succeeded(result=b"1"))
    other = await add(store, kind="other")
    after = await add_after(store, needed, other)
    await pass_time(store, 2)
    assert await store.prune(EVERYTHING, 10) == 0
    (moved,) = await store.delete([needed])
    assert (moved.done, moved.needed_by, moved.state) == (False, after, State.SUCCEEDED)
    ((found, _),) = await store.dependencies([after], with_results=True)
    assert (found.result, found.succeeded, found.kind) == (1, True, "work")
    await store.cancel([after])
    await pass_time(store, 2)
    assert await store.prune(EVERYTHING, 10) == 2
    assert await store.dependencies([after]) == [[]]


async def test_a_flow_is_kept_and_pruned_as_a_whole(store: Store, worker: Worker) -> None:
    ids = await chain(store, 3)
    (alone,) = [entry.id for entry in await store.insert([NewTask(kind="alone")])]
    for _ in range(2):
        await worker.run(Succeeded())
    await store.cancel([alone])
    await pass_time(store, 2)
    assert await store.prune(EVERYTHING, 10) == 1  # not the steps that have ended: one is live
    await worker.run(OUTCOMES["failed"])
    await pass_time(store, 2)
    assert await store.prune(Cutoffs(succeeded=0), 10) == 0  # the flow has failed, and all of it is kept
    assert await store.prune(Cutoffs(failed=0), 10) == 3
    assert await store.get(ids) == [None] * 3
    assert await store.dependencies(ids) == [[], [], []]


async def test_a_dependency_is_known_by_how_it_ended(store: Store) -> None:
    needed = await add(store)
    after = await add_after(store, needed, if_fails="run")
    await store.delete([needed])
    ((found,),) = await store.dependencies([after])
    assert (found.task_id, found.state, found.kind, found.is_open) == (needed, None, None, False)
    assert DELETED == "deleted"


async def test_results_that_are_too_large_together_are_left_out(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.stores.rules.dependencies.RESULTS_LIMIT_BYTES", 10)
    needed = [await add(store) for _ in range(2)]
    for claim in await worker.claim(limit=2):
        await worker.finish(claim, Succeeded(result=b'"sixty"'))
    after, few = await add_after(store, *needed), await add_after(store, needed[0])
    found = await store.dependencies([after, few], with_results=True)
    assert [[one.result_json is None for one in ones] for ones in found] == [[True, True], [False]]
    assert all(one.succeeded for ones in found for one in ones)
