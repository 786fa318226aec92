"""Changes that callers of a server request: each is done and recorded in the audit in one transaction."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from tests.stores.actions import HOUR, KIND, MILLISECOND, OUTCOMES, Worker, add, pass_time, read, state_of

from synergon.errors import KeyConflict, PayloadError
from synergon.model.dependencies import Need
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.operator_actions import NewAction, Verb
from synergon.model.tasks import NewTask, RequestKey
from synergon.stores.base import Store
from synergon.stores.rules import insert


async def request(store: Store, verb: Verb, subject: int, value: Any = None) -> str | None:
    return (await store.act(NewAction(verb=verb, subject=str(subject), value=value, who="ada@10.0.0.7"))).outcome


async def test_a_waiting_task_is_changed_and_the_audit_says_how(store: Store) -> None:
    task_id = await add(store)
    assert await request(store, "set_priority", task_id, 7) == "priority 7"
    assert await request(store, "update_meta", task_id, {"a": 1, "b": 2}) == "changed"
    assert await request(store, "update_meta", task_id, {"b": None}) == "changed"
    assert await request(store, "reschedule", task_id, {"delay": HOUR}) == "rescheduled"
    task = await read(store, task_id)
    assert (task.priority, task.meta, task.state) == (7, {"a": 1}, State.SCHEDULED)
    assert await request(store, "reschedule", task_id, {"run_at": await store.now()}) == "rescheduled"
    assert await state_of(store, task_id) is State.READY
    assert {entry.who for entry in await store.audit()} == {"ada@10.0.0.7"}


async def test_a_running_task_gets_more_time(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    assert await request(store, "extend_timeout", task_id, HOUR) == "rejected: the task is ready"
    await worker.claim()
    assert await request(store, "extend_timeout", task_id, HOUR) == "60 min more"
    (found,) = await store.requests(worker.node_id)
    assert (found.id, found.extended_by) == (task_id, HOUR)
    assert await request(store, "set_priority", task_id, 1) == "rejected: the task is running"
    assert await request(store, "reschedule", task_id, {"delay": 0}) == "rejected: the task is running"


WRONG: Final[list[tuple[Verb, Any]]] = [
    ("reschedule", None),
    ("reschedule", {}),
    ("reschedule", {"delay": 1, "run_at": 1}),
    ("reschedule", {"delay": "soon"}),
    ("set_priority", None),
    ("set_priority", True),
    ("set_priority", 2**63),
    ("extend_timeout", 0),
    ("extend_timeout", 2**62),
    ("update_meta", [1]),
]


async def test_a_wrong_value_is_rejected_and_recorded(store: Store) -> None:
    task_id = await add(store)
    before = await read(store, task_id)
    outcomes = [await request(store, verb, task_id, value) for verb, value in WRONG]
    assert all(outcome is not None and outcome.startswith("rejected: ") for outcome in outcomes), outcomes
    assert await read(store, task_id) == before
    assert [entry.outcome for entry in reversed(await store.audit())] == outcomes


async def test_an_unknown_task_is_rejected(store: Store) -> None:
    values: dict[Verb, Any] = {
        "reschedule": {"delay": 1},
        "set_priority": 1,
        "extend_timeout": 1,
        "update_meta": {"a": 1},
    }
    for verb, value in values.items():
        assert await request(store, verb, 987654321, value) == "rejected: no task of that id"


async def test_metadata_that_is_too_large_changes_and_records_nothing(store: Store) -> None:
    task_id = await add(store)
    with pytest.raises(PayloadError, match="meta has"):
        await request(store, "update_meta", task_id, {"a": "x" * 2_000_000})
    assert (await read(store, task_id)).meta == {}
    assert await store.audit() == []


async def test_the_tasks_of_a_group_and_a_flow_are_cancelled_and_retried(store: Store) -> None:
    flow = await store.open_group(NewGroup(name="f", tasks=(NewTask(kind=KIND), NewTask(kind=KIND)), is_flow=True))
    assert await request(store, "cancel_group", flow.id, "enough") == "2 tasks cancelled"
    assert await request(store, "cancel_group", flow.id) == "0 tasks cancelled"
    assert await request(store, "retry_flow", flow.id) == "2 tasks retried"
    assert [await state_of(store, entry.id) for entry in flow.insertions] == [State.READY, State.READY]


async def test_a_key_in_the_way_of_a_flow_rejects_its_retry(store: Store) -> None:
    new = NewGroup(name="f", tasks=(NewTask(kind=KIND, key="k"), NewTask(kind=KIND)), is_flow=True)
    flow = await store.open_group(new)
    await request(store, "cancel_group", flow.id)
    holder = await add(store, key="k")
    assert await request(store, "retry_flow", flow.id) == f"rejected: task {holder} is live and holds its key"
    assert await state_of(store, flow.insertions[1].id) is State.CANCELLED


async def test_a_needed_task_is_not_deleted_and_the_audit_says_why(store: Store, worker: Worker) -> None:
    needed = await add(store)
    await worker.run(OUTCOMES["succeeded"])
    other = await add(store)
    needs = (Need(task_id=needed), Need(task_id=other))
    (waiting,) = await store.insert([NewTask(kind=KIND, after=needs)])
    assert await request(store, "delete", needed) == (
        f"rejected: task {waiting.id} depends on it and may need its result; cancel that one, or wait for its end"
    )
    assert await state_of(store, needed) is State.SUCCEEDED


# ---------------------------------------------------------------- enqueue


async def test_an_enqueued_task_and_its_entry_in_the_audit_are_one_transaction(store: Store) -> None:
    inserted = await store.insert_for(NewTask(kind=KIND, payload=b'{"a":1}'), "ada@10.0.0.7")
    assert inserted.created
    (entry,) = await store.audit()
    assert (entry.verb, entry.subject, entry.value, entry.who) == ("enqueue", KIND, inserted.id, "ada@10.0.0.7")
    assert entry.outcome == f"created task {inserted.id}"
    again = await store.insert_for(NewTask(kind=KIND, key="k"), "ada")
    other = await store.insert_for(NewTask(kind=KIND, key="k"), "ada")
    assert (other.id, other.created) == (again.id, False)
    assert (await store.audit())[0].outcome == f"task {again.id} holds its key"
    with pytest.raises(KeyConflict):
        await store.insert_for(NewTask(kind=KIND, key="k", on_conflict="raise"), "ada", keyed("r"))
    assert len(await store.audit()) == 3, "nothing was stored of it"


def keyed(key: str, digest: str = "a") -> RequestKey:
    return RequestKey(key=key, digest=digest)


async def test_another_request_with_the_key_of_one_stores_nothing(store: Store) -> None:
    first = await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-1", "a"))
    for _ in range(2):
        other = await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-1", "b"))
        assert (other.id, other.created, other.is_of_other_request) == (first.id, False, True)
        again = await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-1", "a"))
        assert (again.id, again.created, again.is_of_other_request) == (first.id, False, False)
    assert (await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-2", "a"))).created
    assert len(await store.audit()) == 2
    await store.cancel([first.id])
    await store.delete([first.id])
    assert (await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-1", "b"))).created, "both keys are free"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
async def test_a_repeated_request_gets_the_task_of_the_first(store: Store, worker: Worker, outcome: str) -> None:
    first = await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-1"))
    for _ in range(2):
        again = await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-1"))
        assert (again.id, again.created) == (first.id, False)
        if await state_of(store, first.id) is State.READY:
            await worker.run(OUTCOMES[outcome])
    assert (await store.insert_for(NewTask(kind=KIND), "ada", keyed("request-2"))).created
    assert (await store.insert_for(NewTask(kind="other"), "ada", keyed("request-1"))).created
    assert len(await store.audit()) == 3


async def test_a_request_has_its_key_beside_that_of_the_task(store: Store) -> None:
    first = await store.insert_for(NewTask(kind=KIND, key="k", unique_for=HOUR), "ada", keyed("request-1"))
    again = await store.insert_for(NewTask(kind=KIND, key="k", unique_for=HOUR), "ada", keyed("request-2"))
    assert (again.id, again.created) == (first.id, False)
    await store.cancel([first.id])
    for key in ("request-1", "request-2"):
        assert (await store.insert_for(NewTask(kind=KIND, key="other"), "ada", keyed(key))).id == first.id
    await store.delete([first.id])
    for key in ("request-1", "request-2"):
        assert (await store.insert_for(NewTask(kind=KIND), "ada", keyed(key))).created, "a deleted task holds nothing"


async def test_of_many_requests_at_once_one_creates_a_task(store: Store) -> None:
    found = await asyncio.gather(*(store.insert_for(NewTask(kind=KIND), "ada", keyed("request")) for _ in range(10)))
    assert len({entry.id for entry in found}) == 1
    assert sum(entry.created for entry in found) == 1
    assert len(await store.audit()) == 1


async def test_the_key_of_a_request_is_free_after_its_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert, "REQUEST_KEY_MICROSECONDS", MILLISECOND)
    first = await store.insert_for(NewTask(kind=KIND), "ada", keyed("request"))
    await pass_time(store, 2 * MILLISECOND)
    assert (await store.insert_for(NewTask(kind=KIND), "ada", keyed("request"))).id != first.id
