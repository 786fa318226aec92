"""Tasks come in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal

import msgspec
import pytest
from tests.stores.actions import (
    HOUR,
    KIND,
    OUTCOMES,
    Worker,
    add,
    add_in_state,
    demands,
    listed,
    pass_time,
    read,
    state_of,
)

from synergon.errors import KeyConflict
from synergon.model.lifecycle import FINAL, State
from synergon.model.record import from_datetime, to_datetime
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.policies import HIGHEST_PRIORITY, LOWEST_PRIORITY
from synergon.stores.base import Store

LIVE_STATES = (State.SCHEDULED, State.READY, State.RUNNING)

# ---------------------------------------------------------------- states and times


async def test_a_task_that_says_nothing_is_ready(store: Store) -> None:
    (insertion,) = await store.insert([NewTask(kind=KIND)])
    assert insertion == Insertion(id=insertion.id, created=True, state=State.READY)
    record = await read(store, insertion.id)
    assert record.state is State.READY
    assert record.run_at == record.enqueued_at


async def test_a_delay_of_nothing_is_ready(store: Store) -> None:
    (insertion,) = await store.insert([NewTask(kind=KIND, delay=0)])
    assert insertion.state is State.READY


async def test_a_moment_in_the_past_is_ready(store: Store) -> None:
    moment = await store.now() - HOUR
    (insertion,) = await store.insert([NewTask(kind=KIND, run_at=moment)])
    assert insertion.state is State.READY


async def test_a_moment_to_come_is_scheduled_for_that_very_microsecond(store: Store) -> None:
    moment = await store.now() + HOUR + 1
    (insertion,) = await store.insert([NewTask(kind=KIND, run_at=moment)])
    assert insertion.state is State.SCHEDULED
    assert (await read(store, insertion.id)).run_at == to_datetime(moment)


@pytest.mark.parametrize("delay", [10_000_001, 1_234_567_891, 100 * 366 * 86400 * 1_000_000])
async def test_a_delay_is_kept_to_the_microsecond(store: Store, delay: int) -> None:
    record = await read(store, await add(store, delay=delay))
    assert record.state is State.SCHEDULED
    assert record.run_at - record.enqueued_at == timedelta(microseconds=delay)


async def test_an_expiry_is_kept_to_the_microsecond(store: Store) -> None:
    record = await read(store, await add(store, expires_in=HOUR + 7))
    assert record.expires_at is not None
    assert record.expires_at - record.enqueued_at == timedelta(microseconds=HOUR + 7)


async def test_times_are_those_of_the_stores_clock(store: Store) -> None:
    before = await store.now()
    record = await read(store, await add(store))
    assert before <= from_datetime(record.enqueued_at) <= await store.now()


# ---------------------------------------------------------------- fields


async def test_every_field_comes_back(store: Store) -> None:
    task_id = await add(
        store,
        kind="send mail",
        queue="mail",
        payload=b'{"to":"a@b.c","n":1}',
        priority=-7,
        max_attempts=5,
        overrides=b'{"timeout":3}',
        key="welcome-42",
        tags=("onboarding", "x"),
        meta=b'{"tenant":"acme","deep":[1,{"a":null}]}',
    )
    record = await read(store, task_id)
    assert (record.id, record.kind, record.queue, record.priority) == (task_id, "send mail", "mail", -7)
    assert record.arguments == {"to": "a@b.c", "n": 1}
    assert record.overrides is not None
    assert msgspec.json.decode(record.overrides) == {"timeout": 3}
    assert (record.max_attempts, record.key, record.tags) == (5, "welcome-42", ("onboarding", "x"))
    assert record.meta == {"tenant": "acme", "deep": [1, {"a": None}]}


async def test_a_fresh_task_has_done_nothing_yet(store: Store) -> None:
    record = await read(store, await add(store))
    assert (record.attempts, record.crashes, record.claim_no) == (0, 0, 0)
    assert (record.node_id, record.server, record.started_at, record.finished_at) == (None, None, None, None)
    assert (record.reason, record.result, record.errors, record.error, record.progress) == (None, None, (), None, None)
    assert (record.cancel_requested, record.overdue) == (False, False)
    assert (record.key, record.tags, record.meta, record.overrides) == (None, (), {}, None)
    assert (record.expires_at, record.max_attempts) == (None, None)


@pytest.mark.parametrize("priority", [LOWEST_PRIORITY, -1, 0, 1, HIGHEST_PRIORITY])
async def test_any_64_bit_priority_comes_back(store: Store, priority: int) -> None:
    assert (await read(store, await add(store, priority=priority))).priority == priority


async def test_names_may_be_any_text(store: Store) -> None:
    odd = "größe 🐘 '\"%_\\; DROP TABLE"
    record = await read(store, await add(store, kind=odd, queue=odd, key=odd, tags=(odd,)))
    assert (record.kind, record.queue, record.key, record.tags) == (odd, odd, odd, (odd,))


async def test_a_large_payload_comes_back(store: Store) -> None:
    payload = msgspec.json.encode({"text": "x" * 1_000_000})
    record = await read(store, await add(store, payload=payload))
    assert bytes(record.payload) == payload


async def test_changing_a_record_that_was_read_changes_nothing_in_the_store(store: Store) -> None:
    task_id = await add(store, meta=b'{"tenant":"acme"}')
    (await read(store, task_id)).meta["tenant"] = "other"
    assert (await read(store, task_id)).meta == {"tenant": "acme"}


# ---------------------------------------------------------------- lists and ids


async def test_answers_come_in_the_order_of_the_tasks_and_ids_grow(store: Store) -> None:
    insertions = await store.insert([NewTask(kind=f"kind-{number}") for number in range(50)])
    ids = [insertion.id for insertion in insertions]
    assert ids == sorted(set(ids))
    assert [(await read(store, task_id)).kind for task_id in ids] == [f"kind-{number}" for number in range(50)]


async def test_tasks_of_one_list_keep_what_is_their_own(store: Store) -> None:
    tasks = [
        NewTask(
            kind=f"{KIND}-{number % 2}",
            payload=b"%d" % number,
            priority=number % 3,
            tags=("fifth",) if number % 5 == 0 else (),
            meta=b'{"number":%d}' % number if number % 7 else None,
            max_attempts=1 + number % 2,
            limit_key="line" if number % 11 == 0 else None,
        )
        for number in range(80)
    ]
    inserted = await store.insert(tasks)
    for task, insertion in zip(tasks, inserted, strict=True):
        record = await read(store, insertion.id)
        assert (record.kind, bytes(record.payload), record.priority) == (task.kind, task.payload, task.priority)
        assert (record.tags, record.max_attempts, record.limit_key) == (task.tags, task.max_attempts, task.limit_key)
        assert record.meta == ({} if task.meta is None else msgspec.json.decode(task.meta))


DIFFERENCES: Final[dict[str, Any]] = {
    "kind": "other",
    "queue": "other",
    "payload": b'{"n":1}',
    "priority": 3,
    "max_attempts": 4,
    "overrides": b'{"timeout":3}',
    "key": "a key",
    "tags": ("red", "blue"),
    "meta": b'{"tenant":"acme"}',
    "title": "the second",
    "delay": HOUR,
    "expires_in": HOUR,
    "limit_key": "ada",
    "requirements": demands(cpu=1),
}


@pytest.mark.parametrize("field", DIFFERENCES)
@pytest.mark.parametrize("place", range(3))
async def test_tasks_of_one_list_may_differ_in_one_thing_alone(store: Store, field: str, place: int) -> None:
    alike, different = NewTask(kind=KIND), NewTask(**{"kind": KIND, field: DIFFERENCES[field]})
    tasks = [different if number == place else alike for number in range(3)]
    together = [kept(await read(store, inserted.id)) for inserted in await store.insert(tasks)]
    await store.delete(await listed(store))
    alone = [kept(await read(store, (await store.insert([task]))[0].id)) for task in tasks]
    assert together == alone
    assert together.count(together[place]) == 1


def kept(record: TaskRecord) -> dict[str, Any]:
    """What a task was given, without its id and with durations in place of moments."""
    fields = msgspec.structs.asdict(record)
    moments = {name: fields.pop(name) for name in ("enqueued_at", "run_at", "expires_at")}
    del fields["id"]
    return fields | {
        "delay": moments["run_at"] - moments["enqueued_at"],
        "expires_in": moments["expires_at"] and moments["expires_at"] - moments["enqueued_at"],
    }


async def test_nothing_inserted_is_nothing_answered(store: Store) -> None:
    assert await store.insert([]) == []


async def test_the_id_of_a_deleted_task_is_not_given_again(store: Store) -> None:
    task_id = await add(store)
    await store.delete([task_id])
    assert await add(store) > task_id


# ---------------------------------------------------------------- keys: return


@pytest.mark.parametrize("state", LIVE_STATES)
async def test_a_key_that_a_live_task_holds_answers_with_that_task(store: Store, state: State) -> None:
    holder = await add_in_state(store, state, key="a", payload=b"1")
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a", payload=b"2", on_conflict="return")])
    assert insertion == Insertion(id=holder, created=False, state=state)
    assert bytes((await read(store, holder)).payload) == b"1"
    assert await listed(store) == [holder]


async def test_a_conflict_does_not_keep_its_neighbours_out(store: Store) -> None:
    holder = await add(store, key="a")
    insertions = await store.insert([NewTask(kind=KIND), NewTask(kind=KIND, key="a"), NewTask(kind=KIND)])
    assert [insertion.created for insertion in insertions] == [True, False, True]
    assert insertions[1].id == holder


async def test_a_key_twice_in_one_list_is_one_task(store: Store) -> None:
    first, second = await store.insert([NewTask(kind=KIND, key="a", payload=b"1"), NewTask(kind=KIND, key="a")])
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert bytes((await read(store, first.id)).payload) == b"1"


async def test_a_key_belongs_to_its_kind(store: Store) -> None:
    first = await add(store, kind="one", key="a")
    second = await add(store, kind="two", key="a")
    assert first != second


async def test_a_key_is_the_same_in_every_queue(store: Store) -> None:
    first = await add(store, queue="one", key="a")
    assert await add(store, queue="two", key="a") == first


async def test_tasks_without_a_key_never_conflict(store: Store) -> None:
    assert await add(store, on_conflict="raise") != await add(store, on_conflict="raise")


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_a_key_is_free_again_after_the_end(store: Store, state: State) -> None:
    ended = await add_in_state(store, state, key="a")
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a", on_conflict="raise")])
    assert insertion.created
    assert insertion.id > ended


async def test_a_key_is_free_again_after_expiry(store: Store) -> None:
    await add(store, key="a", expires_in=0)
    await store.wake(10)
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a")])
    assert insertion.created


async def test_a_key_is_free_again_after_a_delete(store: Store) -> None:
    await store.delete([await add(store, key="a")])
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a")])
    assert insertion.created


async def test_deleting_an_ended_task_does_not_free_the_key_of_its_successor(store: Store) -> None:
    ended = await add_in_state(store, State.SUCCEEDED, key="a")
    successor = await add(store, key="a")
    await store.delete([ended])
    assert await add(store, key="a") == successor


@pytest.mark.parametrize("outcome", ["retrying", "retrying at once", "snoozed", "handed back", "crashed"])
async def test_a_key_stays_held_while_the_task_goes_on(store: Store, worker: Worker, outcome: str) -> None:
    holder = await add(store, key="a")
    await worker.run(OUTCOMES[outcome])
    assert await add(store, key="a") == holder


# ---------------------------------------------------------------- keys: raise


@pytest.mark.parametrize("state", LIVE_STATES)
async def test_raise_names_the_holder_and_stores_nothing_of_the_call(store: Store, state: State) -> None:
    holder = await add_in_state(store, state, key="a")
    tasks = [NewTask(kind=KIND), NewTask(kind=KIND, key="a", on_conflict="raise"), NewTask(kind="other", key="b")]
    with pytest.raises(KeyConflict) as caught:
        await store.insert(tasks)
    assert caught.value.task_id == holder
    assert "'a'" in str(caught.value)
    assert await listed(store) == [holder]
    assert (await store.insert([NewTask(kind="other", key="b")]))[0].created


async def test_raise_also_sees_the_same_list_and_stores_nothing_of_it(store: Store) -> None:
    with pytest.raises(KeyConflict):
        await store.insert([NewTask(kind=KIND, key="a"), NewTask(kind=KIND, key="a", on_conflict="raise")])
    assert await listed(store) == []
    assert (await store.insert([NewTask(kind=KIND, key="a")]))[0].created


async def test_a_refused_call_takes_back_its_replacements_too(store: Store) -> None:
    holder = await add(store, key="a", payload=b"1")
    await add(store, key="b")
    with pytest.raises(KeyConflict):
        await store.insert(
            [
                NewTask(kind=KIND, key="a", payload=b"2", on_conflict="replace"),
                NewTask(kind=KIND, key="b", on_conflict="raise"),
            ]
        )
    assert bytes((await read(store, holder)).payload) == b"1"


# ---------------------------------------------------------------- keys: replace


@pytest.mark.parametrize("state", [State.SCHEDULED, State.READY])
async def test_replace_puts_everything_new_under_the_old_id(store: Store, state: State) -> None:
    holder = await add_in_state(store, state, key="a", payload=b"1", priority=1, tags=("old",), expires_in=HOUR)
    new = NewTask(
        kind=KIND,
        key="a",
        on_conflict="replace",
        queue="other",
        payload=b"2",
        priority=2,
        delay=2 * HOUR,
        max_attempts=9,
        overrides=b"{}",
        tags=("new",),
        meta=b'{"n":2}',
    )
    assert await store.insert([new]) == [Insertion(id=holder, created=False, state=State.SCHEDULED)]
    record = await read(store, holder)
    assert (record.state, record.queue, bytes(record.payload), record.priority) == (State.SCHEDULED, "other", b"2", 2)
    assert (record.max_attempts, record.tags, record.meta, record.key) == (9, ("new",), {"n": 2}, "a")
    assert record.expires_at is None
    assert record.run_at == to_datetime(from_datetime(record.enqueued_at) + 2 * HOUR)
    assert await listed(store) == [holder]


async def test_replace_can_make_a_scheduled_task_ready(store: Store, worker: Worker) -> None:
    holder = await add(store, key="a", delay=HOUR)
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a", on_conflict="replace")])
    assert insertion.state is State.READY
    assert await worker.claim_ids() == [holder]
    assert (await store.wake(10)).next_in is None


async def test_replace_can_put_a_ready_task_off(store: Store, worker: Worker) -> None:
    await add(store, key="a")
    await add(store, key="a", delay=HOUR, on_conflict="replace")
    assert await worker.claim_ids() == []


async def test_a_replaced_task_is_claimed_in_its_new_queue(store: Store, worker: Worker) -> None:
    holder = await add(store, queue="old", key="a")
    await add(store, queue="new", key="a", on_conflict="replace")
    assert await worker.claim_ids(queues=["old"]) == []
    assert await worker.claim_ids(queues=["new"]) == [holder]


async def test_a_replaced_task_is_claimed_in_its_new_place(store: Store, worker: Worker) -> None:
    other = await add(store)
    holder = await add(store, key="a")
    await add(store, key="a", priority=1, on_conflict="replace")
    assert await worker.claim_ids() == [holder, other]


async def test_a_replacement_has_budgets_of_its_own(store: Store, worker: Worker) -> None:
    holder = await add(store, key="a")
    await worker.run(OUTCOMES["crashed"])
    await worker.run(OUTCOMES["retrying"])
    await add(store, key="a", on_conflict="replace")
    record = await read(store, holder)
    assert (record.attempts, record.crashes, record.errors) == (0, 0, ())
    assert record.claim_no == 2


async def test_replace_of_a_running_task_raises_and_stores_nothing_of_the_call(store: Store) -> None:
    holder = await add_in_state(store, State.RUNNING, key="a", payload=b"1")
    with pytest.raises(KeyConflict) as caught:
        await store.insert([NewTask(kind=KIND), NewTask(kind=KIND, key="a", payload=b"2", on_conflict="replace")])
    assert caught.value.task_id == holder
    assert bytes((await read(store, holder)).payload) == b"1"
    assert await listed(store) == [holder]


async def test_replace_within_one_list_keeps_the_last(store: Store) -> None:
    first, second = await store.insert(
        [NewTask(kind=KIND, key="a", payload=b"1"), NewTask(kind=KIND, key="a", payload=b"2", on_conflict="replace")]
    )
    assert (first.id, second.created) == (second.id, False)
    assert bytes((await read(store, first.id)).payload) == b"2"


async def test_replace_without_a_holder_is_a_plain_insert(store: Store) -> None:
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a", on_conflict="replace")])
    assert insertion.created


async def test_a_replacement_without_expiry_does_not_expire(store: Store) -> None:
    holder = await add(store, key="a", expires_in=1)
    await add(store, key="a", on_conflict="replace")
    await pass_time(store, 2000)
    assert (await store.wake(10)).expired == ()
    assert await state_of(store, holder) is State.READY


async def test_an_expired_task_that_is_replaced_can_be_claimed(store: Store, worker: Worker) -> None:
    holder = await add(store, key="a", expires_in=0)
    assert await worker.claim_ids() == []
    await add(store, key="a", on_conflict="replace")
    assert await worker.claim_ids() == [holder]


@pytest.mark.parametrize("on_conflict", ["return", "raise", "replace"])
async def test_an_ended_task_is_no_conflict(store: Store, on_conflict: Literal["return", "raise", "replace"]) -> None:
    ended = await add_in_state(store, State.FAILED, key="a", payload=b"1")
    (insertion,) = await store.insert([NewTask(kind=KIND, key="a", on_conflict=on_conflict)])
    assert insertion.created
    assert bytes((await read(store, ended)).payload) == b"1"
