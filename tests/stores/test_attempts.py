"""Every attempt of a task is remembered: how it ended, when and where. A success costs no write for it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    ERROR,
    HOUR,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    declare_pool,
    new_node,
    pass_time,
    read,
    settlement_of,
)

from synergon.model.attempts import MOST_ATTEMPTS_STORED, AttemptOutcome, AttemptRecord
from synergon.model.claims import KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    ErrorRecord,
    Failed,
    HandedBack,
    KeyAssigned,
    Outcome,
    Refused,
    Retrying,
    Snoozed,
    Succeeded,
)
from synergon.model.tasks import Cutoffs
from synergon.stores.base import Store

ENDS: list[tuple[Outcome, AttemptOutcome, str | None]] = [
    (Retrying(delay=0, error=ERROR), AttemptOutcome.ERROR, "ValueError"),
    (Retrying(delay=0, error=replace(ERROR, type="Timeout")), AttemptOutcome.ERROR, "Timeout"),
    (Retrying(delay=0, error=ERROR, is_timeout=True), AttemptOutcome.TIMEOUT, "ValueError"),
    (Failed(reason=Reason.EXHAUSTED, error=ERROR), AttemptOutcome.ERROR, "ValueError"),
    (Failed(reason=Reason.TIMEOUT, error=ERROR), AttemptOutcome.TIMEOUT, "ValueError"),
    (Failed(reason=Reason.DISCARDED, error=ERROR), AttemptOutcome.DISCARDED, "ValueError"),
    (Snoozed(delay=0), AttemptOutcome.SNOOZED, None),
    (HandedBack(), AttemptOutcome.HANDED_BACK, None),
    (HandedBack(protected_for=HOUR), AttemptOutcome.PREEMPTED, None),
    (Crashed(error=ERROR), AttemptOutcome.CRASHED, "ValueError"),
    (Cancelled(), AttemptOutcome.CANCELLED, None),
    (Cancelled(why="enough"), AttemptOutcome.CANCELLED, None),
    (Refused(error=ERROR, requirements=""), AttemptOutcome.REFUSED, "ValueError"),
]


def outcomes_of(attempts: tuple[AttemptRecord, ...]) -> list[AttemptOutcome | None]:
    return [attempt.outcome for attempt in attempts]


@pytest.mark.parametrize(("outcome", "noted", "error"), ENDS, ids=str)
async def test_an_attempt_is_noted_with_its_outcome_time_and_node(
    store: Store, worker: Worker, outcome: Outcome, noted: AttemptOutcome, error: str | None
) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    started_at = (await read(store, task_id)).started_at
    await worker.finish(claim, outcome)
    record = await read(store, task_id)
    (attempt,) = record.attempts_made
    assert (attempt.outcome, attempt.error) == (noted, error)
    assert (attempt.claim_no, attempt.attempt) == (1, 1)
    assert (attempt.node_id, attempt.node_name, attempt.host) == (worker.node_id, f"name of {worker.node_id}", "host")
    assert attempt.started_at == started_at
    assert attempt.seconds is not None
    assert attempt.seconds >= 0
    if error is not None:
        assert record.errors[-1].at == attempt.ended_at, "so the traceback is found"


async def test_a_success_is_derived_from_the_row(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(Retrying(delay=0, error=ERROR))
    await worker.run(Succeeded())
    record = await read(store, task_id)
    assert outcomes_of(record.ended_attempts) == [AttemptOutcome.ERROR]
    assert outcomes_of(record.attempts_made) == [AttemptOutcome.ERROR, AttemptOutcome.SUCCEEDED]
    success = record.attempts_made[-1]
    assert (success.started_at, success.ended_at) == (record.started_at, record.finished_at)
    assert (success.claim_no, success.attempt, success.node_id) == (2, 2, worker.node_id)


async def test_a_running_attempt_has_no_end_yet(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    assert (await read(store, task_id)).attempts_made == ()
    await worker.claim_one()
    (attempt,) = (await read(store, task_id)).attempts_made
    assert (attempt.outcome, attempt.ended_at, attempt.seconds, attempt.node_id) == (None, None, None, worker.node_id)


async def test_a_task_that_never_ran_has_made_no_attempt(store: Store) -> None:
    task_id = await add(store)
    await store.cancel([task_id])
    assert (await read(store, task_id)).attempts_made == ()


async def test_a_success_of_a_task_that_was_to_be_cancelled_counts_as_cancelled(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    await worker.finish(claim, Succeeded())
    assert outcomes_of((await read(store, task_id)).attempts_made) == [AttemptOutcome.CANCELLED]


async def test_an_assigned_key_is_no_attempt(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(KeyAssigned(limit_key="a"))
    assert (await read(store, task_id)).attempts_made == ()


async def test_the_name_of_a_node_outlives_its_row(store: Store) -> None:
    task_id = await add(store)
    doomed = Worker(store, "doomed")
    await store.register(new_node(doomed.node_id))
    await doomed.claim_one()
    await store.reap([doomed.node_id], 10)
    assert doomed.node_id not in [node.id for node in await store.nodes()]
    (attempt,) = (await read(store, task_id)).attempts_made
    assert (attempt.outcome, attempt.node_id) == (AttemptOutcome.NODE_DIED, "doomed")
    assert (attempt.node_name, attempt.host) == ("name of doomed", "host")


@pytest.mark.parametrize("is_reaped", [False, True])
async def test_the_name_of_the_node_of_a_success_outlives_its_row(store: Store, is_reaped: bool) -> None:
    gone = Worker(store, "gone")
    await store.register(new_node(gone.node_id))
    task_id = await add(store)
    await gone.run(Succeeded())
    node = (await store.node_names(["gone", "unknown"]))["gone"]
    if is_reaped:
        await store.reap([gone.node_id], 10)
    else:
        await store.unregister(gone.node_id)
        await store.unregister(gone.node_id)
    assert await store.node_names(["gone", "unknown"]) == {"gone": node}
    assert (node.name, node.process and node.process.host) == ("name of gone", "host")
    await store.retry([task_id])
    (attempt,) = (await read(store, task_id)).attempts_made
    assert (attempt.outcome, attempt.node_name, attempt.host) == (AttemptOutcome.SUCCEEDED, "name of gone", "host")


@pytest.mark.parametrize("shortest", [0, None])
async def test_names_of_nodes_are_pruned_when_no_task_can_be_as_old(store: Store, shortest: int | None) -> None:
    await store.register(new_node("gone"))
    await store.register(new_node("here"))
    await store.unregister("gone")
    await pass_time(store, 2 * MILLISECOND)
    await store.prune(Cutoffs(succeeded=0, failed=MILLISECOND, cancelled=shortest, audit=0), 10)
    names = await store.node_names(["gone", "here"])
    assert set(names) == ({"here"} if shortest == 0 else {"here", "gone"})


async def test_the_attempt_of_a_node_without_a_row_has_its_name(store: Store) -> None:
    task_id = await add(store)
    gone = Worker(store, "gone")
    await store.register(new_node(gone.node_id))
    await gone.claim_one()
    await store.unregister(gone.node_id)
    await store.reap([], 10)
    (attempt,) = (await read(store, task_id)).attempts_made
    assert (attempt.outcome, attempt.node_id, attempt.node_name) == (AttemptOutcome.NODE_DIED, "gone", "name of gone")


async def test_a_stale_or_repeated_outcome_is_not_noted(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    snoozed = settlement_of(claim, Snoozed(delay=0))
    await store.finish([snoozed, snoozed])
    await store.finish([snoozed])
    await worker.claim_one()
    await store.finish([snoozed])
    assert outcomes_of((await read(store, task_id)).ended_attempts) == [AttemptOutcome.SNOOZED]


async def test_the_latest_attempts_are_kept(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    for _ in range(MOST_ATTEMPTS_STORED + 3):
        await worker.run(Snoozed(delay=0))
        await store.wake(10)
    record = await read(store, task_id)
    assert [attempt.claim_no for attempt in record.attempts_made] == list(range(4, MOST_ATTEMPTS_STORED + 4))
    await worker.run(Succeeded())
    record = await read(store, task_id)
    assert [attempt.claim_no for attempt in record.attempts_made] == list(range(5, MOST_ATTEMPTS_STORED + 5))


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
async def test_a_retry_by_an_operator_keeps_all_attempts(store: Store, worker: Worker, end: str) -> None:
    task_id = await add(store)
    await worker.run(Retrying(delay=0, error=ERROR))
    await worker.run(OUTCOMES[end])
    before = (await read(store, task_id)).attempts_made
    assert len(before) == 2
    if end == "succeeded":  # the record of a success has no name of its node before
        before = (before[0], replace(before[1], node_name=f"name of {worker.node_id}", host="host"))
    await store.retry([task_id])
    assert (await read(store, task_id)).attempts_made == before
    await worker.run(Succeeded())
    record = await read(store, task_id)
    assert record.attempts_made[:2] == before
    assert [attempt.claim_no for attempt in record.attempts_made] == [1, 2, 3]
    assert record.attempts_made[-1].outcome is AttemptOutcome.SUCCEEDED


async def test_a_replaced_task_has_no_attempts_of_the_one_before(store: Store, worker: Worker) -> None:
    task_id = await add(store, key="k")
    await worker.run(Retrying(delay=HOUR, error=ERROR))
    assert await add(store, key="k", on_conflict="replace") == task_id
    assert (await read(store, task_id)).attempts_made == ()


async def test_the_server_of_an_attempt_is_noted(store: Store, worker: Worker) -> None:
    await declare_pool(store, one=1)
    task_id = await add(store)
    for _ in range(2):
        (claim,) = await worker.claim_kinds(KindRequest(kind="work", count=1, provider="gpu"))
        await worker.finish(claim, Retrying(delay=0, error=ERROR))
        await declare_pool(store, two=1)
    assert [attempt.server for attempt in (await read(store, task_id)).attempts_made] == ["one", "two"]


async def test_every_attempt_of_a_batch_is_noted(store: Store, worker: Worker) -> None:
    ids = [await add(store) for _ in range(3)]
    claims = await worker.claim()
    await store.finish(
        [
            settlement_of(claims[0], Succeeded()),
            settlement_of(claims[1], Snoozed(delay=MILLISECOND)),
            settlement_of(claims[2], HandedBack()),
        ]
    )
    noted = [outcomes_of((await read(store, task_id)).attempts_made) for task_id in ids]
    assert noted == [[AttemptOutcome.SUCCEEDED], [AttemptOutcome.SNOOZED], [AttemptOutcome.HANDED_BACK]]
    assert (await read(store, ids[0])).state is State.SUCCEEDED


@pytest.mark.parametrize("outcome", ["failed", "retrying", "crashed"])
async def test_an_error_names_the_node_and_its_host(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    error = ErrorRecord(attempt=1, type="ValueError", message="no", node_id=worker.node_id)
    await worker.finish(claim, replace(OUTCOMES[outcome], error=error))
    (found,) = (await read(store, task_id)).errors
    assert (found.node_id, found.node_name, found.host) == (worker.node_id, f"name of {worker.node_id}", "host")
