"""What running attempts say of themselves on the way: progress, and that they are overdue."""

from __future__ import annotations

import pytest
from tests.stores.actions import (
    OUTCOMES,
    Worker,
    add,
    read,
)

from synergon.model.claims import Claim
from synergon.model.outcomes import FencedOutcome, Progress, Report, Succeeded
from synergon.stores.base import Store


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
    await store.finish(
        [FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=OUTCOMES[outcome], progress=progress)]
    )
    assert (await read(store, claim.id)).progress == progress


async def test_a_stale_settlement_brings_no_progress(store: Store, worker: Worker) -> None:
    claim = await _one_running(store, worker)
    stale = FencedOutcome(
        id=claim.id, claim_no=claim.claim_no + 1, outcome=Succeeded(), progress=Progress(fraction=1.0)
    )
    await store.finish([stale])
    assert (await read(store, claim.id)).progress is None
