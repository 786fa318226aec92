"""What operators do, from every state: what takes effect, what is refused, and that no move is ever illegal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

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
    settlement_of,
    state_of,
)

from synergon.errors import PayloadError
from synergon.model.claims import AttemptRequest
from synergon.model.lifecycle import FINAL, MOVES, State, is_legal
from synergon.model.record import from_datetime, to_datetime
from synergon.model.tasks import Extension, MetaChange, Moved, NewTask, Reprioritizing, Rescheduling, Woken
from synergon.policies import CRASH_LIMIT, HIGHEST_PRIORITY, LOWEST_PRIORITY
from synergon.stores.base import Store

Operation = Callable[[Store, int], Awaitable[list[Moved]]]

OPERATIONS: dict[str, Operation] = {
    "cancel": lambda store, task_id: store.cancel([task_id]),
    "retry": lambda store, task_id: store.retry([task_id]),
    "delete": lambda store, task_id: store.delete([task_id]),
    "put off": lambda store, task_id: store.reschedule([Rescheduling(id=task_id, delay=HOUR)]),
    "call": lambda store, task_id: store.reschedule([Rescheduling(id=task_id, delay=0)]),
    "set priority": lambda store, task_id: store.set_priority([Reprioritizing(id=task_id, priority=5)]),
    "extend": lambda store, task_id: store.extend_timeout([Extension(id=task_id, extra=HOUR)]),
}

EFFECTS: dict[str, dict[State, State | None]] = {
    "cancel": {State.SCHEDULED: State.CANCELLED, State.READY: State.CANCELLED, State.RUNNING: State.RUNNING},
    "retry": dict.fromkeys(FINAL, State.READY),
    "delete": dict.fromkeys([state for state in STATES if state is not State.RUNNING]),
    "put off": {State.SCHEDULED: State.SCHEDULED, State.READY: State.SCHEDULED},
    "call": {State.SCHEDULED: State.READY, State.READY: State.READY},
    "set priority": {State.SCHEDULED: State.SCHEDULED, State.READY: State.READY},
    "extend": {State.RUNNING: State.RUNNING},
}
"""The states from which an operation takes effect, and where it leads. From all others it is refused."""


# ---------------------------------------------------------------- every operation from every state


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("state", STATES)
async def test_an_operation_takes_effect_or_is_refused_by_the_state(store: Store, state: State, name: str) -> None:
    task_id = await add_in_state(store, state)
    before = await read(store, task_id)
    (moved,) = await OPERATIONS[name](store, task_id)
    assert (moved.id, moved.kind, moved.key_holder) == (task_id, KIND, None)
    if state in EFFECTS[name]:
        assert (moved.done, moved.state) == (True, EFFECTS[name][state])
    else:
        assert (moved.done, moved.state) == (False, state)
        assert await read(store, task_id) == before
    assert await state_of(store, task_id) is moved.state


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("state", STATES)
async def test_no_operation_makes_an_illegal_move(store: Store, state: State, name: str) -> None:
    task_id = await add_in_state(store, state)
    await OPERATIONS[name](store, task_id)
    now_in = await state_of(store, task_id)
    assert now_in in (state, None) or is_legal(state, now_in)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_unknown_task_is_reported(store: Store, name: str) -> None:
    assert await OPERATIONS[name](store, 4711) == [Moved(id=4711, done=False, state=None)]


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_deleted_task_is_unknown(store: Store, name: str) -> None:
    task_id = await add(store)
    await store.delete([task_id])
    assert await OPERATIONS[name](store, task_id) == [Moved(id=task_id, done=False, state=None)]


@pytest.mark.parametrize("name", ["cancel", "retry", "delete"])
@pytest.mark.parametrize("state", STATES)
async def test_a_task_that_is_named_twice_is_found_as_the_first_entry_left_it(
    store: Store, state: State, name: str
) -> None:
    one_by_one, together = await add_in_state(store, state), await add_in_state(store, state)
    expected = [(await OPERATIONS[name](store, one_by_one))[0] for _ in range(2)]
    call = {"cancel": store.cancel, "retry": store.retry, "delete": store.delete}[name]
    answers = await call([together, together])
    assert [(answer.done, answer.state, answer.kind) for answer in answers] == [
        (answer.done, answer.state, answer.kind) for answer in expected
    ]


async def test_nothing_asked_is_nothing_answered(store: Store) -> None:
    assert await store.cancel([]) == []
    assert await store.retry([]) == []
    assert await store.delete([]) == []
    assert await store.reschedule([]) == []
    assert await store.set_priority([]) == []
    assert await store.report([]) == []
    assert await store.get([]) == []


# ---------------------------------------------------------------- every legal move has somebody who makes it


async def _due(store: Store, task_id: int) -> None:
    await store.reschedule([Rescheduling(id=task_id, delay=MILLISECOND)])
    await pass_time(store, MILLISECOND)
    await store.wake(100)


async def _expire(store: Store, task_id: int) -> None:
    await pass_time(store, MILLISECOND)
    await store.wake(100)


async def _claim(store: Store, task_id: int) -> None:
    await (await Worker.start(store, "mover")).claim()


async def _cancel(store: Store, task_id: int) -> None:
    await store.cancel([task_id])


async def _put_off(store: Store, task_id: int) -> None:
    await store.reschedule([Rescheduling(id=task_id, delay=HOUR)])


async def _retry(store: Store, task_id: int) -> None:
    await store.retry([task_id])


def _settle(outcome: str) -> Callable[[Store, int], Awaitable[None]]:
    async def settle(store: Store, task_id: int) -> None:
        await store.reap([(await read(store, task_id)).node_id or ""], 10)
        (claim,) = await (await Worker.start(store, "mover")).claim()
        await store.finish([settlement_of(claim, OUTCOMES[outcome])])

    return settle


WAYS: dict[tuple[State, State], Callable[[Store, int], Awaitable[None]]] = {
    (State.SCHEDULED, State.READY): _due,
    (State.SCHEDULED, State.CANCELLED): _cancel,
    (State.SCHEDULED, State.FAILED): _expire,
    (State.READY, State.RUNNING): _claim,
    (State.READY, State.SCHEDULED): _put_off,
    (State.READY, State.CANCELLED): _cancel,
    (State.READY, State.FAILED): _expire,
    (State.RUNNING, State.SUCCEEDED): _settle("succeeded"),
    (State.RUNNING, State.FAILED): _settle("failed"),
    (State.RUNNING, State.CANCELLED): _settle("cancelled"),
    (State.RUNNING, State.SCHEDULED): _settle("retrying"),
    (State.RUNNING, State.READY): _settle("handed back"),
    (State.SUCCEEDED, State.READY): _retry,
    (State.FAILED, State.READY): _retry,
    (State.CANCELLED, State.READY): _retry,
}


def test_the_ways_are_those_of_the_table() -> None:
    reachable = {(source, target) for source in STATES for target in MOVES[source] if target is not State.WAITING}
    assert set(WAYS) == reachable


@pytest.mark.parametrize(("source", "target"), WAYS, ids=lambda state: str(state))
async def test_every_legal_move_can_be_made(store: Store, source: State, target: State) -> None:
    expires_in = 1 if WAYS[source, target] is _expire else None
    task_id = await add_in_state(store, source, expires_in=expires_in)
    await WAYS[source, target](store, task_id)
    assert await state_of(store, task_id) is target


@pytest.mark.parametrize("state", [state for state in STATES if state is not State.READY])
async def test_only_ready_tasks_are_claimed(store: Store, worker: Worker, state: State) -> None:
    task_id = await add_in_state(store, state)
    assert await worker.claim_ids() == []
    assert await state_of(store, task_id) is state


@pytest.mark.parametrize("state", STATES)
async def test_the_clock_moves_nothing_that_is_not_due(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    woken = await store.wake(100)
    assert woken == Woken(kinds={}, expired=(), next_in=woken.next_in)
    assert await state_of(store, task_id) is state


@pytest.mark.parametrize("state", [state for state in STATES if state is not State.RUNNING])
async def test_the_reaper_moves_nothing_that_does_not_run(store: Store, worker: Worker, state: State) -> None:
    task_id = await add_in_state(store, state)
    assert await store.reap([worker.node_id, f"helper-{task_id}"], 10) == []
    assert await state_of(store, task_id) is state


# ---------------------------------------------------------------- retry


async def _ended_in_every_way(store: Store, worker: Worker) -> int:
    """An ended task that has something in every field that a retry resets."""
    task_id = await add(store, expires_in=HOUR, priority=3)
    await worker.run(OUTCOMES["crashed"])
    await worker.run(OUTCOMES["retrying at once"])
    claim = await worker.claim_one()
    await store.cancel([task_id], why="stop")
    await worker.finish(claim, OUTCOMES["failed"])
    return task_id


async def test_a_retry_resets_the_budgets_and_keeps_claim_number_and_errors(store: Store, worker: Worker) -> None:
    task_id = await _ended_in_every_way(store, worker)
    before = await read(store, task_id)
    now = await store.now()
    assert await store.retry([task_id]) == [Moved(id=task_id, done=True, state=State.READY, kind=KIND)]
    record = await read(store, task_id)
    assert (record.attempts, record.crashes, record.expires_at, record.cancel_requested) == (0, 0, None, False)
    assert (record.reason, record.finished_at, record.node_id, record.overdue) == (None, None, None, False)
    assert (record.claim_no, record.errors, record.priority) == (3, before.errors, 3)
    assert record.enqueued_at == before.enqueued_at
    assert now <= from_datetime(record.run_at) <= await store.now()


async def test_a_retry_clears_result_and_progress(store: Store) -> None:
    task_id = await add_in_state(store, State.SUCCEEDED)
    await store.retry([task_id])
    record = await read(store, task_id)
    assert (record.result, record.progress) == (None, None)


async def test_a_retried_task_can_run_and_its_fence_goes_on(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(OUTCOMES["failed"])
    await store.retry([task_id])
    claim = await worker.claim_one()
    assert (claim.id, claim.claim_no, claim.attempts) == (task_id, 2, 1)
    assert (await worker.finish(claim, OUTCOMES["succeeded"])).state is State.SUCCEEDED


async def test_a_retried_task_has_all_its_crashes_before_it(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    for _ in range(CRASH_LIMIT):
        await worker.run(OUTCOMES["crashed"])
    await store.retry([task_id])
    assert (await worker.run(OUTCOMES["crashed"])).state is State.READY


async def test_a_retried_task_that_had_expired_does_not_expire_again(store: Store, worker: Worker) -> None:
    task_id = await add(store, expires_in=0)
    await store.wake(10)
    await store.retry([task_id])
    assert await store.wake(10) == Woken(kinds={}, expired=(), next_in=None)
    assert await worker.claim_ids() == [task_id]


async def test_a_retry_is_refused_while_a_live_task_holds_the_key(store: Store) -> None:
    ended = await add_in_state(store, State.FAILED, key="a")
    holder = await add(store, key="a")
    expected = Moved(id=ended, done=False, state=State.FAILED, kind=KIND, key_holder=holder)
    assert await store.retry([ended]) == [expected]
    assert await state_of(store, ended) is State.FAILED
    await store.delete([holder])
    assert (await store.retry([ended]))[0].done


async def test_a_retried_task_holds_its_key_again(store: Store) -> None:
    ended = await add_in_state(store, State.FAILED, key="a")
    await store.retry([ended])
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a")])
    assert (insertion.id, insertion.created) == (ended, False)


async def test_of_two_ended_tasks_with_one_key_the_first_is_retried(store: Store) -> None:
    first = await add_in_state(store, State.FAILED, key="a")
    second = await add_in_state(store, State.CANCELLED, key="a")
    moved = await store.retry([first, second])
    assert [(move.done, move.key_holder) for move in moved] == [(True, None), (False, first)]


# ---------------------------------------------------------------- delete


@pytest.mark.parametrize("state", [state for state in STATES if state is not State.RUNNING])
async def test_a_deleted_task_leaves_no_trace(store: Store, worker: Worker, state: State) -> None:
    task_id = await add_in_state(store, state)
    assert await store.delete([task_id]) == [Moved(id=task_id, done=True, state=None, kind=KIND)]
    assert await store.get([task_id]) == [None]
    assert await listed(store) == []
    assert await store.counts() == {}
    assert (await store.wake(10)).next_in is None
    assert await worker.claim_ids() == []


# ---------------------------------------------------------------- reschedule


@pytest.mark.parametrize("state", [State.SCHEDULED, State.READY])
async def test_a_task_can_be_put_off_to_a_very_microsecond(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    moment = await store.now() + 2 * HOUR + 1
    (moved,) = await store.reschedule([Rescheduling(id=task_id, run_at=moment)])
    assert (moved.done, moved.state) == (True, State.SCHEDULED)
    assert (await read(store, task_id)).run_at == to_datetime(moment)


async def test_a_task_can_be_put_off_by_a_delay_from_now(store: Store) -> None:
    task_id = await add(store)
    before = await store.now()
    await store.reschedule([Rescheduling(id=task_id, delay=HOUR)])
    run_at = from_datetime((await read(store, task_id)).run_at)
    assert before + HOUR <= run_at <= await store.now() + HOUR


@pytest.mark.parametrize("way", ["nothing", "delay", "past"])
async def test_a_task_can_be_called_now(store: Store, worker: Worker, way: str) -> None:
    task_id = await add(store, delay=HOUR)
    past = await store.now() - HOUR
    change = {
        "nothing": Rescheduling(id=task_id),
        "delay": Rescheduling(id=task_id, delay=0),
        "past": Rescheduling(id=task_id, run_at=past),
    }[way]
    assert (await store.reschedule([change]))[0].state is State.READY
    assert (await store.wake(10)).next_in is None
    assert await worker.claim_ids() == [task_id]


async def test_a_change_of_time_changes_nothing_else(store: Store) -> None:
    task_id = await add(store, priority=3, key="a", expires_in=HOUR)
    before = await read(store, task_id)
    await store.reschedule([Rescheduling(id=task_id, delay=HOUR)])
    after = await read(store, task_id)
    assert after.run_at - before.run_at >= timedelta(hours=1)
    assert (after.priority, after.key, after.expires_at) == (before.priority, before.key, before.expires_at)
    assert (after.enqueued_at, after.claim_no, after.attempts) == (before.enqueued_at, 0, 0)


async def test_changes_are_answered_one_by_one(store: Store) -> None:
    first, second = await add_many(store, 2)
    await store.cancel([second])
    changes = [Rescheduling(id=task_id, delay=HOUR) for task_id in (4711, second, first)]
    moved = await store.reschedule(changes)
    assert [(move.id, move.done, move.state) for move in moved] == [
        (4711, False, None),
        (second, False, State.CANCELLED),
        (first, True, State.SCHEDULED),
    ]


# ---------------------------------------------------------------- priority


@pytest.mark.parametrize("priority", [LOWEST_PRIORITY, HIGHEST_PRIORITY])
@pytest.mark.parametrize("state", [State.SCHEDULED, State.READY])
async def test_any_priority_can_be_set(store: Store, state: State, priority: int) -> None:
    task_id = await add_in_state(store, state)
    assert await store.set_priority([Reprioritizing(id=task_id, priority=priority)]) == [
        Moved(id=task_id, done=True, state=state, kind=KIND)
    ]
    assert (await read(store, task_id)).priority == priority


async def test_a_priority_set_while_scheduled_counts_when_it_is_due(store: Store, worker: Worker) -> None:
    first, second = await add_many(store, 2, delay=1)
    await store.set_priority([Reprioritizing(id=second, priority=1)])
    await pass_time(store, MILLISECOND)
    await store.wake(10)
    assert await worker.claim_ids() == [second, first]


async def test_a_new_priority_does_not_change_when_a_task_expires(store: Store) -> None:
    task_id = await add(store, expires_in=MILLISECOND)
    await store.set_priority([Reprioritizing(id=task_id, priority=1)])
    await pass_time(store, MILLISECOND)
    assert (await store.wake(10)).expired == (task_id,)


# ---------------------------------------------------------------- extend_timeout


async def test_a_node_learns_how_much_more_time_its_attempts_get(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 3)
    await worker.claim()
    await store.extend_timeout([Extension(id=ids[0], extra=HOUR), Extension(id=ids[0], extra=MILLISECOND)])
    await store.extend_timeout([Extension(id=ids[1], extra=1)])
    requests = sorted(await store.requests(worker.node_id), key=lambda request: request.id)
    assert requests == [
        AttemptRequest(id=ids[0], extended_by=HOUR + MILLISECOND),
        AttemptRequest(id=ids[1], extended_by=1),
    ]
    assert await store.requests("stranger") == []


@pytest.mark.parametrize("outcome", ["retrying", "handed back", "failed"])
async def test_an_extension_is_for_one_attempt(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.extend_timeout([Extension(id=task_id, extra=HOUR)])
    await worker.finish(claim, OUTCOMES[outcome])
    if await state_of(store, task_id) in FINAL:
        await store.retry([task_id])
    await store.reschedule([Rescheduling(id=task_id, delay=0)])
    await worker.claim_one()
    assert await store.requests(worker.node_id) == []


async def test_extensions_add_up_to_a_hundred_years_at_most(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim_one()
    longest = 100 * 365 * 24 * HOUR
    await store.extend_timeout([Extension(id=task_id, extra=longest)] * 3)
    (request,) = await store.requests(worker.node_id)
    assert request.extended_by is not None
    assert longest <= request.extended_by < 2 * longest


# ---------------------------------------------------------------- update_meta


@pytest.mark.parametrize("state", STATES)
async def test_the_metadata_of_a_task_can_be_changed_in_every_state(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    before = await read(store, task_id)
    changes = [MetaChange(id=task_id, values={"a": 1, "b": {"c": None}}), MetaChange(id=task_id, values={"d": "x"})]
    assert await store.update_meta(changes) == [{"a": 1, "b": {"c": None}}, {"a": 1, "b": {"c": None}, "d": "x"}]
    assert await store.update_meta([MetaChange(id=task_id, values={"a": None, "d": "y", "z": None})]) == [
        {"b": {"c": None}, "d": "y"}
    ]
    after = await read(store, task_id)
    assert after.meta == {"b": {"c": None}, "d": "y"}
    assert (after.state, after.claim_no, after.payload) == (state, before.claim_no, before.payload)


async def test_metadata_survives_the_end_and_a_retry(store: Store, worker: Worker) -> None:
    task_id = await add(store, meta=b'{"first": 1}')
    claim = await worker.claim_one()
    await store.update_meta([MetaChange(id=task_id, values={"second": 2})])
    await worker.finish(claim, OUTCOMES["failed"])
    assert (await read(store, task_id)).meta == {"first": 1, "second": 2}
    await store.retry([task_id])
    assert (await read(store, task_id)).meta == {"first": 1, "second": 2}


async def test_metadata_that_becomes_too_large_changes_nothing(store: Store) -> None:
    task_id = await add(store)
    half = "x" * 600_000
    await store.update_meta([MetaChange(id=task_id, values={"a": half})])
    with pytest.raises(PayloadError, match="meta has"):
        await store.update_meta([MetaChange(id=task_id, values={"b": half})])
    assert list((await read(store, task_id)).meta) == ["a"]


async def test_a_task_that_does_not_exist_has_no_metadata(store: Store) -> None:
    task_id = await add(store)
    await store.delete([task_id])
    assert await store.update_meta([MetaChange(id=task_id, values={"a": 1})]) == [None]
    assert await store.update_meta([]) == []
