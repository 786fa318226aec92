"""Attempts are settled: every outcome, the fence, repeats, children, and reports on the way."""

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
    listed,
    read,
    settlement_of,
    state_of,
)

from synergon.lifecycle import FINAL, Reason, State
from synergon.policies import CRASH_LIMIT
from synergon.records import (
    Cancelled,
    Claim,
    Crashed,
    ErrorRecord,
    Failed,
    NewTask,
    OnConflict,
    Progress,
    Report,
    Retrying,
    Settlement,
    Snoozed,
    Succeeded,
    Verdict,
    from_datetime,
)
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
    assert (record.result, record.reason, record.attempts) == ({"a": [1, None]}, None, 1)
    assert record.finished_at is not None
    assert record.started_at is not None
    assert before <= from_datetime(record.started_at) <= from_datetime(record.finished_at) <= await store.now()


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
    assert record.error == msgspec.structs.replace(error, at=record.error.at)
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
    settlements = [settlement_of(claim, outcome) for claim, outcome in zip(claims, OUTCOMES.values(), strict=True)]
    settlements.reverse()
    verdicts = await store.finish(settlements)
    assert [verdict.id for verdict in verdicts] == [settlement.id for settlement in settlements]
    assert [verdict.state for verdict in verdicts] == list(reversed(LEADS_TO.values()))


async def test_nothing_settled_is_nothing_answered(store: Store) -> None:
    assert await store.finish([]) == []


# ---------------------------------------------------------------- the fence


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("state", [state for state in STATES if state is not State.RUNNING])
async def test_a_task_that_does_not_run_cannot_be_settled(store: Store, state: State, outcome: str) -> None:
    task_id = await add_in_state(store, state)
    before = await read(store, task_id)
    stale = Settlement(id=task_id, claim_no=before.claim_no + 1, outcome=OUTCOMES[outcome])
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
    stale = Settlement(id=task_id, claim_no=claim.claim_no + difference, outcome=OUTCOMES[outcome])
    (verdict,) = await store.finish([stale])
    assert verdict.state is None
    assert await read(store, task_id) == before


async def test_an_unknown_task_settles_nothing(store: Store) -> None:
    verdicts = await store.finish([Settlement(id=4711, claim_no=1, outcome=OUTCOMES["succeeded"])])
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


async def test_a_stale_settlement_does_not_fail_its_neighbours(store: Store, worker: Worker) -> None:
    await add_many(store, 3)
    first, second, third = await worker.claim()
    stale = Settlement(id=second.id, claim_no=99, outcome=OUTCOMES["succeeded"])
    unknown = Settlement(id=4711, claim_no=1, outcome=OUTCOMES["succeeded"])
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
    settlement = settlement_of(await worker.claim_one(), OUTCOMES[outcome])
    verdicts = await store.finish([settlement, settlement])
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
    await worker.finish(old, OUTCOMES["retrying at once"])
    assert await read(store, task_id) == before


# ---------------------------------------------------------------- children


async def test_children_come_with_success(store: Store, worker: Worker) -> None:
    await add(store)
    children = (NewTask(kind="child", payload=b"1"), NewTask(kind="child", payload=b"2", delay=HOUR))
    verdict = await worker.run(Succeeded(children=children))
    first, second = [await read(store, child_id) for child_id in verdict.child_ids]
    assert (bytes(first.payload), first.state) == (b"1", State.READY)
    assert (bytes(second.payload), second.state) == (b"2", State.SCHEDULED)


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
    assert await listed(store, kind="child") == list(verdict.child_ids)


async def test_children_of_one_settlement_given_twice_are_inserted_once(store: Store, worker: Worker) -> None:
    await add(store)
    settlement = settlement_of(await worker.claim_one(), Succeeded(children=(NewTask(kind="child"),)))
    verdicts = await store.finish([settlement, settlement])
    assert await listed(store, kind="child") == list(verdicts[0].child_ids)


async def test_a_stale_claim_has_no_children(store: Store, worker: Worker) -> None:
    await add(store)
    claim = await worker.claim_one()
    await store.reap([worker.node_id], 10)
    await worker.finish(claim, Succeeded(children=(NewTask(kind="child"),)))
    assert await listed(store, kind="child") == []


async def test_a_cancelled_task_has_no_children(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    verdict = await worker.finish(claim, Succeeded(children=(NewTask(kind="child"),)))
    assert (verdict.state, verdict.child_ids) == (State.CANCELLED, ())
    assert await listed(store, kind="child") == []


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
    assert await listed(store, kind="child") == list(verdicts[0].child_ids)


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


# ---------------------------------------------------------------- reports on the way


async def _one_running(store: Store, worker: Worker) -> Claim:
    await add(store)
    return await worker.claim_one()


async def test_progress_of_a_running_attempt_is_written(store: Store, worker: Worker) -> None:
    claim = await _one_running(store, worker)
    progress = Progress(fraction=0.5, message="half way")
    assert await store.report([Report(id=claim.id, claim_no=claim.claim_no, progress=progress)]) == [True]
    record = await read(store, claim.id)
    assert (record.progress, record.overdue) == (progress, False)


async def test_an_overdue_mark_is_written_and_leaves_the_progress(store: Store, worker: Worker) -> None:
    claim = await _one_running(store, worker)
    progress = Progress(fraction=0.5)
    await store.report([Report(id=claim.id, claim_no=claim.claim_no, progress=progress)])
    assert await store.report([Report(id=claim.id, claim_no=claim.claim_no, overdue=True)]) == [True]
    record = await read(store, claim.id)
    assert (record.progress, record.overdue) == (progress, True)


async def test_a_report_without_the_mark_does_not_take_it_away(store: Store, worker: Worker) -> None:
    claim = await _one_running(store, worker)
    await store.report([Report(id=claim.id, claim_no=claim.claim_no, overdue=True)])
    await store.report([Report(id=claim.id, claim_no=claim.claim_no, progress=Progress(fraction=1.0))])
    assert (await read(store, claim.id)).overdue


async def test_the_next_attempt_is_not_overdue(store: Store, worker: Worker) -> None:
    claim = await _one_running(store, worker)
    await store.report([Report(id=claim.id, claim_no=claim.claim_no, overdue=True)])
    await worker.finish(claim, OUTCOMES["handed back"])
    assert not (await read(store, claim.id)).overdue
    await worker.claim_one()
    assert not (await read(store, claim.id)).overdue


@pytest.mark.parametrize("note", ["progress", "overdue"])
async def test_stale_reports_are_told_so_and_write_nothing(store: Store, worker: Worker, note: str) -> None:
    claim = await _one_running(store, worker)
    before = await read(store, claim.id)
    progress = Progress(fraction=0.5) if note == "progress" else None
    stale = [
        Report(id=task_id, claim_no=claim_no, progress=progress, overdue=note == "overdue")
        for task_id, claim_no in [(claim.id, 0), (claim.id, 2), (4711, 1)]
    ]
    fresh = Report(id=claim.id, claim_no=claim.claim_no)
    assert await store.report([*stale[:2], fresh, stale[2]]) == [False, False, True, False]
    assert await read(store, claim.id) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_settled_attempt_reports_nothing_more(store: Store, worker: Worker, outcome: str) -> None:
    claim = await _one_running(store, worker)
    await worker.finish(claim, OUTCOMES[outcome])
    report = Report(id=claim.id, claim_no=claim.claim_no, progress=Progress(fraction=0.9), overdue=True)
    assert await store.report([report]) == [False]
    record = await read(store, claim.id)
    assert (record.progress, record.overdue) == (None, False)


async def test_a_report_without_news_still_tells_whether_the_claim_holds(store: Store, worker: Worker) -> None:
    claim = await _one_running(store, worker)
    report = Report(id=claim.id, claim_no=claim.claim_no)
    assert await store.report([report]) == [True]
    await worker.finish(claim, OUTCOMES["handed back"])
    assert await store.report([report]) == [False]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_the_last_progress_comes_with_the_settlement(store: Store, worker: Worker, outcome: str) -> None:
    claim = await _one_running(store, worker)
    progress = Progress(fraction=1.0, message="done")
    await store.finish([Settlement(id=claim.id, claim_no=claim.claim_no, outcome=OUTCOMES[outcome], progress=progress)])
    assert (await read(store, claim.id)).progress == progress


async def test_a_stale_settlement_brings_no_progress(store: Store, worker: Worker) -> None:
    claim = await _one_running(store, worker)
    stale = Settlement(id=claim.id, claim_no=claim.claim_no + 1, outcome=Succeeded(), progress=Progress(fraction=1.0))
    await store.finish([stale])
    assert (await read(store, claim.id)).progress is None
