"""Attempts are settled: every outcome, the fence, repeats, and a cancel on record.

Long, because what one settlement may do is one subject; children and reports have files of their own.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from tests.stores.actions import (
    ERROR,
    HOUR,
    KIND,
    OUTCOMES,
    STATES,
    Worker,
    add,
    add_in_state,
    add_many,
    read,
    settlement_of,
    state_of,
)

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    ErrorRecord,
    Failed,
    FencedOutcome,
    Retrying,
    Snoozed,
    Succeeded,
    Verdict,
)
from synergon.model.record import from_datetime
from synergon.model.tasks import NewTask
from synergon.policies import CRASH_LIMIT
from synergon.stores.base import Store

LEADS_TO = {
    "succeeded": State.SUCCEEDED,
    "failed": State.FAILED,
    "retrying": State.SCHEDULED,
    "retrying at once": State.READY,
    "snoozed": State.SCHEDULED,
    "cancelled": State.CANCELLED,
    "handed back": State.READY,
    "crashed": State.READY,
    "server failed": State.READY,
}

# ---------------------------------------------------------------- outcomes


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_every_outcome_leads_to_its_state(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    verdict = await worker.run(OUTCOMES[outcome])
    assert verdict == Verdict(id=task_id, state=LEADS_TO[outcome], kind=KIND)
    assert await state_of(store, task_id) is LEADS_TO[outcome]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_task_that_goes_on_belongs_to_no_node_and_an_ended_one_remembers_it(
    store: Store, worker: Worker, outcome: str
) -> None:
    task_id = await add(store)
    await worker.run(OUTCOMES[outcome])
    record = await read(store, task_id)
    assert record.node_id == (worker.node_id if record.state in FINAL else None)
    assert (record.finished_at is not None) == (record.state in FINAL)
    assert (record.reason is not None) == (record.state in {State.FAILED, State.CANCELLED})


async def test_success_keeps_the_result(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    before = await store.now()
    await worker.run(Succeeded(result=b'{"a":[1,null]}'))
    record = await read(store, task_id)
    assert record.result_json == msgspec.Raw(b'{"a":[1,null]}')
    assert (record.result, record.reason, record.attempts) == ({"a": [1, None]}, None, 1)
    assert record.finished_at is not None
    assert record.started_at is not None
    assert before <= from_datetime(record.started_at) <= from_datetime(record.finished_at) <= await store.now()


@pytest.mark.parametrize(
    "result",
    [
        "größe 🐘 \0 \"quoted\" 'single' \\",
        "",
        0,
        False,
        [],
        {},
        -1.5e300,
        2**62,
        {"deep": [[[{"a": [None, True]}]]]},
        "x" * 100_000,
    ],
    ids=lambda result: repr(result)[:20],
)
async def test_any_json_result_comes_back(store: Store, worker: Worker, result: object) -> None:
    task_id = await add(store)
    await worker.run(Succeeded(result=msgspec.json.encode(result)))
    assert (await read(store, task_id)).result == result


@pytest.mark.parametrize("result", [None, b"null"])
async def test_success_may_have_nothing_to_say(store: Store, worker: Worker, result: bytes | None) -> None:
    task_id = await add(store)
    await worker.run(Succeeded(result=result))
    assert (await read(store, task_id)).result is None


@pytest.mark.parametrize("reason", [Reason.ERROR, Reason.EXHAUSTED, Reason.TIMEOUT, Reason.DISCARDED])
async def test_a_failure_keeps_its_reason_and_its_error(store: Store, worker: Worker, reason: Reason) -> None:
    task_id = await add(store)
    error = ErrorRecord(attempt=1, type="KeyError", message="'x'", traceback="Traceback", node_id=worker.node_id)
    before = await store.now()
    await worker.run(Failed(reason=reason, error=error))
    record = await read(store, task_id)
    assert (record.state, record.reason) == (State.FAILED, reason)
    assert record.error is not None
    assert record.error == msgspec.structs.replace(
        error, at=record.error.at, node_name=f"name of {worker.node_id}", host="host"
    )
    assert record.error.at is not None
    assert before <= from_datetime(record.error.at) <= await store.now()


@pytest.mark.parametrize("delay", [10_000_001, 1_234_567_891])
async def test_a_retry_is_due_after_exactly_its_delay(store: Store, worker: Worker, delay: int) -> None:
    task_id = await add(store)
    await worker.run(Retrying(delay=delay, error=ERROR))
    record = await read(store, task_id)
    assert (record.state, record.attempts) == (State.SCHEDULED, 1)
    assert record.error is not None
    assert record.error.at is not None
    assert record.run_at - record.error.at == timedelta(microseconds=delay)


async def test_a_snooze_costs_no_attempt_and_is_no_error(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(Snoozed(delay=HOUR))
    record = await read(store, task_id)
    assert (record.state, record.attempts, record.errors) == (State.SCHEDULED, 0, ())
    assert record.run_at >= record.enqueued_at + timedelta(hours=1)


async def test_a_snooze_of_nothing_is_ready_at_once(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(Snoozed(delay=0))
    assert await worker.claim_ids() == [task_id]


async def test_a_task_handed_back_has_lost_nothing(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(OUTCOMES["handed back"])
    record = await read(store, task_id)
    assert (record.state, record.attempts, record.crashes, record.errors) == (State.READY, 0, 0, ())


async def test_a_body_may_cancel_itself_and_say_why(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(Cancelled(why="not needed any more"))
    record = await read(store, task_id)
    assert (record.state, record.reason) == (State.CANCELLED, Reason.CANCELLED)
    assert record.error is not None
    assert record.error.message == "not needed any more"


async def test_a_body_may_cancel_itself_without_a_word(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(Cancelled())
    assert (await read(store, task_id)).errors == ()


async def test_a_crash_is_charged_instead_of_the_attempt(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(Crashed(error=ERROR))
    record = await read(store, task_id)
    assert (record.state, record.attempts, record.crashes) == (State.READY, 0, 1)
    assert [error.message for error in record.errors] == ["bad"]


async def test_a_task_that_crashes_too_often_has_failed(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    states = [(await worker.run(Crashed(error=ERROR))).state for _ in range(CRASH_LIMIT)]
    assert states == [State.READY] * (CRASH_LIMIT - 1) + [State.FAILED]
    record = await read(store, task_id)
    assert (record.reason, record.crashes, len(record.errors)) == (Reason.CRASHED, CRASH_LIMIT, CRASH_LIMIT)


async def test_errors_are_kept_across_retries_in_order(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    for attempt in (1, 2):
        error = ErrorRecord(attempt=attempt, type="E", message=f"no {attempt}")
        await worker.run(Retrying(delay=0, error=error))
    await worker.run(Failed(reason=Reason.EXHAUSTED, error=ErrorRecord(attempt=3, type="E", message="no 3")))
    record = await read(store, task_id)
    assert [(error.attempt, error.message) for error in record.errors] == [(1, "no 1"), (2, "no 2"), (3, "no 3")]
    moments = [from_datetime(error.at) for error in record.errors if error.at is not None]
    assert moments == sorted(moments)
    assert len(moments) == 3


async def test_errors_survive_the_success_of_a_later_attempt(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(OUTCOMES["retrying at once"])
    await worker.run(OUTCOMES["succeeded"])
    record = await read(store, task_id)
    assert (record.state, record.attempts, len(record.errors)) == (State.SUCCEEDED, 2, 1)


async def test_the_last_twenty_errors_are_kept_at_least(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    for attempt in range(1, 26):
        await worker.run(Retrying(delay=0, error=ErrorRecord(attempt=attempt, type="E", message="no")))
    errors = (await read(store, task_id)).errors
    assert [error.attempt for error in errors][-20:] == list(range(6, 26))


async def test_answers_come_in_the_order_of_the_settlements(store: Store, worker: Worker) -> None:
    await add_many(store, len(OUTCOMES))
    claims = await worker.claim()
    fenced_outcomes = [settlement_of(claim, outcome) for claim, outcome in zip(claims, OUTCOMES.values(), strict=True)]
    fenced_outcomes.reverse()
    verdicts = await store.finish(fenced_outcomes)
    assert [verdict.id for verdict in verdicts] == [fenced.id for fenced in fenced_outcomes]
    assert [verdict.state for verdict in verdicts] == list(reversed(LEADS_TO.values()))


async def test_nothing_settled_is_nothing_answered(store: Store) -> None:
    assert await store.finish([]) == []


# ---------------------------------------------------------------- the fence


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("state", [state for state in STATES if state is not State.RUNNING])
async def test_a_task_that_does_not_run_cannot_be_settled(store: Store, state: State, outcome: str) -> None:
    task_id = await add_in_state(store, state)
    before = await read(store, task_id)
    stale = FencedOutcome(id=task_id, claim_no=before.claim_no + 1, outcome=OUTCOMES[outcome])
    (verdict,) = await store.finish([stale])
    assert verdict.state is None
    assert await read(store, task_id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("difference", [-1, 1])
async def test_another_claim_number_settles_nothing(
    store: Store, worker: Worker, outcome: str, difference: int
) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    before = await read(store, task_id)
    stale = FencedOutcome(id=task_id, claim_no=claim.claim_no + difference, outcome=OUTCOMES[outcome])
    (verdict,) = await store.finish([stale])
    assert verdict.state is None
    assert await read(store, task_id) == before


async def test_an_unknown_task_settles_nothing(store: Store) -> None:
    verdicts = await store.finish([FencedOutcome(id=4711, claim_no=1, outcome=OUTCOMES["succeeded"])])
    assert verdicts == [Verdict(id=4711, state=None)]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_node_that_was_declared_dead_settles_nothing(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.reap([worker.node_id], 10)
    before = await read(store, task_id)
    verdict = await worker.finish(claim, OUTCOMES[outcome])
    assert verdict.state is None
    assert await read(store, task_id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_the_verdict_of_an_earlier_attempt_is_not_that_of_a_dead_one(
    store: Store, worker: Worker, outcome: str
) -> None:
    await add(store)
    await worker.run(OUTCOMES["retrying at once"])
    claim = await worker.claim_one()
    await store.reap([worker.node_id], 10)
    assert (await worker.finish(claim, OUTCOMES[outcome])).state is None


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_node_whose_task_runs_elsewhere_settles_nothing(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    stale = await worker.claim_one()
    await store.reap([worker.node_id], 10)
    other = await Worker.start(store, "node-2")
    fresh = await other.claim_one()
    before = await read(store, task_id)
    assert (await worker.finish(stale, OUTCOMES[outcome])).state is None
    assert await read(store, task_id) == before
    assert (await other.finish(fresh, OUTCOMES["succeeded"])).state is State.SUCCEEDED


async def test_a_deleted_task_settles_nothing(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await worker.finish(claim, OUTCOMES["handed back"])
    await store.delete([task_id])
    assert (await worker.finish(claim, OUTCOMES["succeeded"])).state is None
    assert await state_of(store, task_id) is None


@pytest.mark.parametrize("numbers", [(2, 2, 2), (1, 3, 2)])
async def test_successes_that_are_settled_together_go_each_by_its_own_claim(
    store: Store, worker: Worker, numbers: tuple[int, ...]
) -> None:
    ids = await add_many(store, len(numbers))
    current = {}
    for turn in range(1, max(numbers) + 1):
        for claim in await worker.claim():
            current[claim.id] = claim
            if turn < numbers[ids.index(claim.id)]:
                await worker.finish(claim, Snoozed(delay=0))
    fenced_outcomes = [settlement_of(current[task_id], Succeeded(result=b"%d" % task_id)) for task_id in ids]
    late = msgspec.structs.replace(fenced_outcomes[-1], claim_no=9)
    verdicts = await store.finish([*fenced_outcomes[:-1], late])
    assert [verdict.state for verdict in verdicts] == [*[State.SUCCEEDED] * len(ids[:-1]), None]
    assert [(await read(store, task_id)).result for task_id in ids] == [*ids[:-1], None]
    (verdict,) = await store.finish(fenced_outcomes[-1:])
    assert verdict.state is State.SUCCEEDED


async def test_a_stale_settlement_does_not_fail_its_neighbours(store: Store, worker: Worker) -> None:
    await add_many(store, 3)
    first, second, third = await worker.claim()
    stale = FencedOutcome(id=second.id, claim_no=99, outcome=OUTCOMES["succeeded"])
    unknown = FencedOutcome(id=4711, claim_no=1, outcome=OUTCOMES["succeeded"])
    verdicts = await store.finish(
        [settlement_of(first, OUTCOMES["succeeded"]), stale, unknown, settlement_of(third, OUTCOMES["failed"])]
    )
    assert [verdict.state for verdict in verdicts] == [State.SUCCEEDED, None, None, State.FAILED]
    assert await state_of(store, second.id) is State.RUNNING


# ---------------------------------------------------------------- repeats


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_settlement_that_is_repeated_gets_its_verdict_again(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    verdict = await worker.finish(claim, OUTCOMES[outcome])
    before = await read(store, task_id)
    assert await worker.finish(claim, OUTCOMES[outcome]) == verdict
    assert await read(store, task_id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_repeat_after_a_cancel_gets_its_verdict_again(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    await worker.finish(claim, OUTCOMES[outcome])
    before = await read(store, task_id)
    assert (await worker.finish(claim, OUTCOMES[outcome])).state is State.CANCELLED
    assert await read(store, task_id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_settlement_twice_in_one_list_is_applied_once(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    fenced = settlement_of(await worker.claim_one(), OUTCOMES[outcome])
    verdicts = await store.finish([fenced, fenced])
    assert [verdict.state for verdict in verdicts] == [LEADS_TO[outcome]] * 2
    record = await read(store, task_id)
    assert len(record.errors) <= 1
    assert record.crashes <= 1


async def test_an_old_settlement_does_not_touch_the_next_attempt(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    old = await worker.claim_one()
    await worker.finish(old, OUTCOMES["retrying at once"])
    await worker.claim_one()
    before = await read(store, task_id)
    assert (await worker.finish(old, OUTCOMES["retrying at once"])).state is State.READY
    assert await read(store, task_id) == before


# ---------------------------------------------------------------- a cancel on record


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_cancel_on_record_wins_over_every_outcome(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store, key="a")
    claim = await worker.claim_one()
    await store.cancel([task_id])
    assert (await worker.finish(claim, OUTCOMES[outcome])).state is State.CANCELLED
    record = await read(store, task_id)
    assert (record.state, record.reason, record.result) == (State.CANCELLED, Reason.CANCELLED, None)
    assert record.finished_at is not None
    assert (await store.insert([NewTask(kind=KIND, key="a")]))[0].created


@pytest.mark.parametrize("outcome", ["failed", "retrying", "retrying at once", "crashed"])
async def test_a_cancelled_task_still_tells_what_went_wrong(store: Store, worker: Worker, outcome: str) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    await worker.finish(claim, OUTCOMES[outcome])
    assert [error.message for error in (await read(store, task_id)).errors] == ["bad"]


@pytest.mark.parametrize(
    ("outcome", "attempts", "crashes"), [("failed", 1, 0), ("snoozed", 0, 0), ("handed back", 0, 0), ("crashed", 0, 1)]
)
async def test_a_cancelled_task_is_charged_like_any_other(
    store: Store, worker: Worker, outcome: str, attempts: int, crashes: int
) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    await worker.finish(claim, OUTCOMES[outcome])
    record = await read(store, task_id)
    assert (record.attempts, record.crashes) == (attempts, crashes)


async def test_the_last_crash_of_a_cancelled_task_ends_it_cancelled(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    for _ in range(CRASH_LIMIT - 1):
        await worker.run(OUTCOMES["crashed"])
    claim = await worker.claim_one()
    await store.cancel([task_id])
    assert (await worker.finish(claim, OUTCOMES["crashed"])).state is State.CANCELLED
