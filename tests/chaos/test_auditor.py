"""The auditor finds what it should: each forged end of a chaos has one fault, and one finding."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from tests.chaos.auditor import audit, recoveries
from tests.chaos.evidence import BatchLine, Effect, Event, Evidence, Fall, FlowRow, Line, Outage, Pause, Row

from synergon import Reason, ScheduleRecord, State

NODE: Final = 100
OTHER: Final = 200
CHILD: Final = 101
LEASE: Final = 3.0


def ran(
    task_id: int, claim_no: int = 1, *, at: float = 0.0, node: int = NODE, end: Event | None = Event.RETURNS
) -> list[Line]:
    """What an execution of one second wrote down."""
    lines = [
        Line(Event.BEGINS, task_id, claim_no, node, node, at),
        Line(Event.LIVES, task_id, claim_no, node, node, at + 0.5),
    ]
    return lines if end is None else [*lines, Line(end, task_id, claim_no, node, node, at + 1)]


def row(task_id: int, kind: str = "slow", state: State = State.SUCCEEDED, **values: Any) -> Row:
    return Row(is_history=state.is_final, id=task_id, kind=kind, state=state, **values)


CHILDREN: Final = [row(4 + number, "child", arguments={"parent_id": 3, "number": number}) for number in range(2)]
STEPS: Final = [
    row(11, "listed", flow_id=9, arguments={"fails": 0, "count": 2}, result=[0, 1]),
    row(12, "doubled", flow_id=9, is_map=True, result=2),
    row(13, "mended", flow_id=9, arguments={"label": "m", "fails": 2}),
    row(14, "summed", flow_id=9, arguments={"if_fails": "cancel"}, result=2),
    *(row(15 + n, "doubled", flow_id=9, arguments={"number": n}, result=2 * n) for n in range(2)),
]
ITEMS: Final = [
    row(21 + n, "batched", arguments={"items": {"token": f"t{n}"}}, result=f"t{n}", batch_id=21) for n in range(2)
]
GOOD: Final = Evidence(
    lease_seconds=LEASE,
    accepted=[1, 2, 3],
    rows=[row(1), row(2, "ledger"), row(3, "parent", arguments={"children": 2}), *CHILDREN, *STEPS, *ITEMS],
    effects=[Effect(2, 1)],
    lines=[
        *(line for task_id in (*range(1, 6), 11, 13, 21) for line in ran(task_id)),
        *(line for task_id in (15, 16) for line in ran(task_id, at=2)),
        *ran(14, at=4),
    ],
    flows=[FlowRow(9, State.SUCCEEDED)],
    retried=["m"],
    batches=[BatchLine(21, 1, ("t0", "t1"))],
)
FAILED_STEP: Final = row(13, "mended", State.FAILED, reason=Reason.EXHAUSTED, attempts=2, max_attempts=2, flow_id=9)


def rows_with(changed: Row) -> list[Row]:
    return [changed if one.id == changed.id else one for one in GOOD.rows]


def lines_of_first(*executions: list[Line]) -> list[Line]:
    """The first task ran like this, the others as before."""
    return [*(line for line in GOOD.lines if line.task_id != 1), *(line for lines in executions for line in lines)]


FIRED: Final = [row(number, schedule="s", scheduled_for=number) for number in (1, 2)]
"""The first two tasks, if a schedule has created them."""


def scheduled(*rows: Row, **numbers: Any) -> Evidence:
    """A schedule of a minute, whose first two occurrences have passed."""
    minute = timedelta(minutes=1)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    record = ScheduleRecord(
        name="s",
        state="paused",
        kind="slow",
        queue="default",
        every=minute,
        created_at=start,
        next_at=start + 3 * minute,
    )
    kept = [one for one in GOOD.rows if one.id > 2]
    evidence = replace(GOOD, rows=[*rows, *kept], effects=[], accepted=[])
    return replace(evidence, schedules=[msgspec.structs.replace(record, **{"times_fired": len(rows), **numbers})])


TWICE: Final = rows_with(row(1, claim_no=2))
CRASHED_ONCE: Final = rows_with(row(1, claim_no=2, owner_deaths=1))

SECOND_ATTEMPT: Final = replace(
    GOOD,
    rows=rows_with(row(2, "ledger", attempts=2, claim_no=2)),
    effects=[Effect(2, 2)],
    lines=[
        *(line for line in GOOD.lines if line.task_id != 2),
        *(line for lines in (ran(2, end=Event.RAISES), ran(2, 2, at=5)) for line in lines),
    ],
)
"""Of a body that writes in a transaction."""

FORGED: Final[dict[str, tuple[Evidence, str]]] = {
    "a lost task": (replace(GOOD, accepted=[*GOOD.accepted, 99]), "task 99 was accepted and is lost"),
    "a task in both places": (
        replace(GOOD, rows=[row(1, state=State.READY), *GOOD.rows]),
        "task 1 is in 2 places",
    ),
    "an id that was given twice": (replace(GOOD, accepted=[1, 1, 2, 3]), "accepted 2 times"),
    "a task that nobody has": (replace(GOOD, lines=[*GOOD.lines, *ran(77)]), "task 77 ran and is in no place"),
    "a task that has not ended": (replace(GOOD, rows=rows_with(row(1, state=State.RUNNING))), "it is running"),
    "a failure that nobody ordered": (
        replace(GOOD, rows=rows_with(row(1, state=State.FAILED, reason=Reason.ERROR))),
        "it should not be failed(error)",
    ),
    "an occurrence that created two tasks": (
        scheduled(*(replace(one, scheduled_for=7) for one in FIRED), times_fired=1, times_skipped=1),
        "has created 2 tasks for its occurrence at 7",
    ),
    "a task that its schedule does not know": (
        scheduled(*FIRED, times_fired=1, times_skipped=1),
        "counts 1 and has created 2",
    ),
    "an occurrence that is lost": (scheduled(FIRED[0], row(2), times_fired=1), "2 have passed, it counts 1"),
    "an occurrence that was to run": (scheduled(FIRED[0], row(2), times_fired=1, times_missed=1), "all were to run"),
    "a success too early": (
        replace(GOOD, rows=rows_with(row(1, arguments={"fails": 2}))),
        "succeeded in attempt 1 instead of 3",
    ),
    "an attempt for nothing": (SECOND_ATTEMPT, "succeeded in attempt 2 instead of 1"),
    "an attempt although another node stood still": (
        replace(SECOND_ATTEMPT, pauses=[Pause(OTHER, 0.6, 2)]),
        "succeeded in attempt 2 instead of 1",
    ),
    "exhausted too early": (
        replace(
            GOOD,
            rows=rows_with(row(1, state=State.FAILED, reason=Reason.EXHAUSTED, max_attempts=4, arguments={"fails": 4})),
            lines=lines_of_first(ran(1, end=Event.RAISES)),
        ),
        "exhausted after 1 of 4",
    ),
    "a crash": (replace(GOOD, rows=rows_with(row(1, crashes=1)), falls=[Fall(9, 9)]), "no child died under it"),
    "an end after too few deaths": (
        replace(
            GOOD, rows=rows_with(row(1, state=State.FAILED, reason=Reason.CRASHED, owner_deaths=9)), falls=[Fall(9, 9)]
        ),
        "has lost 9 owners",
    ),
    "a death for nothing": (replace(GOOD, rows=rows_with(row(1, owner_deaths=1))), "nothing was done to anybody"),
    "a success of nobody": (replace(GOOD, rows=TWICE), "by claim 2, whose body said []"),
    "a claim that ended twice": (replace(GOOD, lines=[*GOOD.lines, ran(1)[-1]]), "ended more than once"),
    "a claim that began twice": (replace(GOOD, lines=[*GOOD.lines, ran(1)[0]]), "began 2 times"),
    "a claim that the database does not know": (
        replace(GOOD, lines=lines_of_first(ran(1), ran(1, 2, at=5)), falls=[Fall(NODE, 1)]),
        "claim 2 ran, and the database knows 1",
    ),
    "two executions at once": (
        replace(
            GOOD,
            rows=CRASHED_ONCE,
            lines=lines_of_first(ran(1, end=Event.IS_STOPPED), ran(1, 2, at=0.7, node=OTHER)),
            outages=[Outage(0, 9)],
        ),
        "still is_stopped 0.300 s after claim 2 began",
    ),
    "one that went on long after its node had stood still": (
        replace(
            GOOD,
            rows=CRASHED_ONCE,
            lines=lines_of_first(
                ran(1, end=None), ran(1, 2, at=4, node=OTHER), [Line(Event.LIVES, 1, 1, NODE, NODE, 30)]
            ),
            pauses=[Pause(NODE, 0.6, 10)],
        ),
        "still lives 26.000 s after claim 2 began",
    ),
    "a return that was repeated": (
        replace(GOOD, rows=TWICE, lines=lines_of_first(ran(1), ran(1, 2, at=5))),
        "claim 1 returned on 100, and claim 2 ran it again",
    ),
    "a return in a short outage that was repeated": (
        replace(GOOD, rows=TWICE, lines=lines_of_first(ran(1), ran(1, 2, at=5)), outages=[Outage(0.5, 1.5)]),
        "claim 1 returned on 100, and claim 2 ran it again",
    ),
    "a return in the second of two outages, when there was time between them": (
        replace(
            GOOD,
            rows=TWICE,
            lines=lines_of_first(ran(1), ran(1, 2, at=5)),
            outages=[Outage(-4, 0.9 - LEASE / 6), Outage(0.95, 1.5)],
        ),
        "claim 1 returned on 100, and claim 2 ran it again",
    ),
    "an effect that was written twice": (
        replace(GOOD, effects=[Effect(2, 1), Effect(2, 1)]),
        "effects were written by [1, 1]",
    ),
    "an effect of another claim": (replace(GOOD, effects=[Effect(2, 7)]), "effects were written by [7]"),
    "an effect that is missing": (replace(GOOD, effects=[]), "effects were written by []"),
    "a child that is there twice": (
        replace(GOOD, rows=[*GOOD.rows, replace(CHILDREN[0], id=6)], lines=[*GOOD.lines, *ran(6)]),
        "its child 0 is there 2 times",
    ),
    "a child that is missing": (
        replace(
            GOOD,
            rows=[one for one in GOOD.rows if one.id != 5],
            lines=[line for line in GOOD.lines if line.task_id != 5],
        ),
        "its child 1 is there 0 times",
    ),
    "a flow that has not ended": (
        replace(GOOD, flows=[FlowRow(9, None)]),
        "it is None, and its steps make it succeeded",
    ),
    "a flow that nobody has": (replace(GOOD, flows=[]), "flow 9 is lost, and its steps are there"),
    "a flow without one of its steps": (
        replace(GOOD, rows=[one for one in GOOD.rows if one.id != 12]),
        "flow 9: it has the steps",
    ),
    "an item of a map that is there twice": (
        replace(GOOD, rows=[*GOOD.rows, replace(STEPS[-2], id=17)], lines=[*GOOD.lines, *ran(17, at=2)]),
        "has created [0, 0, 1]",
    ),
    "an item of a map that is missing": (
        replace(
            GOOD,
            rows=[replace(one, result=0) if one.id == 14 else one for one in GOOD.rows if one.id != 16],
            lines=[line for line in GOOD.lines if line.task_id != 16],
        ),
        "has created [0]",
    ),
    "a result that did not arrive": (
        replace(GOOD, rows=rows_with(replace(STEPS[3], result=0))),
        "result 0 instead of 2",
    ),
    "a step that was cancelled for nothing": (
        replace(
            GOOD,
            rows=rows_with(replace(STEPS[3], state=State.CANCELLED, reason=Reason.DEPENDENCY)),
            flows=[FlowRow(9, State.CANCELLED)],
        ),
        "its step 14 is cancelled(dependency)",
    ),
    "a step that a retry did not bring back": (
        replace(
            GOOD,
            rows=[
                replace(one, state=State.CANCELLED, reason=Reason.DEPENDENCY)
                if one.id == 14
                else replace(FAILED_STEP, arguments=STEPS[2].arguments)
                if one.id == 13
                else one
                for one in GOOD.rows
            ],
            lines=[*(line for line in GOOD.lines if line.task_id != 13), *ran(13, end=Event.RAISES)],
            flows=[FlowRow(9, State.FAILED)],
        ),
        "its step 13 was mended and retried, and is failed",
    ),
    "a step that began too early": (
        replace(GOOD, lines=[*(line for line in GOOD.lines if line.task_id != 16), *ran(16, at=0.5)]),
        "its step 16 began before step 11 had ended",
    ),
    "an item of a batch that did not run": (
        replace(GOOD, batches=[BatchLine(21, 1, ("t0",))]),
        "task 22 has succeeded, and its last batch has not returned",
    ),
    "an item with the result of another": (
        replace(GOOD, rows=rows_with(replace(ITEMS[1], result="t0"))),
        "task 22 has the result 't0' of another item",
    ),
    "an item of a batch that ran twice": (
        replace(
            GOOD,
            rows=rows_with(replace(ITEMS[1], claim_no=2, batch_id=22)),
            lines=[*GOOD.lines, *ran(22, 2, at=5)],
            batches=[*GOOD.batches, BatchLine(22, 2, ("t1",))],
        ),
        "task 22: claim 1 returned on 100, and claim 2 ran it again",
    ),
    "an item that nobody has": (
        replace(GOOD, batches=[BatchLine(21, 1, ("t0", "t1", "t2"))]),
        "item t2 ran, and is in no place",
    ),
    "an item of a batch that did not return": (
        replace(GOOD, rows=rows_with(replace(ITEMS[1], batch_id=99))),
        "of its batch, led by task 99, no body said returns",
    ),
    "a dead node that nobody forgot": (replace(GOOD, strange_nodes=["n1"]), "node n1 is dead"),
}


def test_a_good_end_is_good() -> None:
    assert audit(GOOD) == []


@pytest.mark.parametrize("name", FORGED)
def test_the_auditor_finds(name: str) -> None:
    evidence, finding = FORGED[name]
    found = audit(evidence)
    assert any(finding in one for one in found), found
    assert len(found) == 1, found


def test_children_of_a_parent_that_failed_are_found() -> None:
    failed = row(3, "parent", State.FAILED, reason=Reason.CRASHED, owner_deaths=10, arguments={"children": 2})
    found = audit(replace(GOOD, rows=rows_with(failed), falls=[Fall(NODE, 9)]))
    assert found == [f"task 3 is failed, and its child {number} is there 1 times" for number in range(2)]


@pytest.mark.parametrize(
    "evidence",
    [
        replace(
            GOOD, rows=CRASHED_ONCE, lines=lines_of_first(ran(1, end=None), ran(1, 2, at=5)), falls=[Fall(NODE, 0.6)]
        ),
        replace(GOOD, rows=CRASHED_ONCE, lines=lines_of_first(ran(1), ran(1, 2, at=5)), falls=[Fall(NODE, 1.1)]),
        replace(
            GOOD,
            rows=CRASHED_ONCE,
            lines=lines_of_first([replace(line, pid=CHILD) for line in ran(1)], ran(1, 2, at=5)),
            falls=[Fall(NODE, 0.9)],
        ),
        replace(GOOD, rows=TWICE, lines=lines_of_first(ran(1), ran(1, 2, at=5)), outages=[Outage(0.5, 4)]),
        replace(
            GOOD,
            rows=TWICE,
            lines=lines_of_first(ran(1), ran(1, 2, at=5)),
            outages=[Outage(0.95, 1.5), Outage(-4, 0.9)],
        ),
        replace(
            GOOD,
            rows=CRASHED_ONCE,
            lines=lines_of_first(
                ran(1, end=None), ran(1, 2, at=4, node=OTHER), [Line(Event.IS_STOPPED, 1, 1, NODE, NODE, 10.5)]
            ),
            pauses=[Pause(NODE, 0.6, 10)],
        ),
        replace(SECOND_ATTEMPT, pauses=[Pause(NODE, 0.6, 2)]),
    ],
    ids=[
        "killed in the middle",
        "killed before its outcome was written",
        "killed just before its child returned",
        "cut off for a lease",
        "cut off twice, one after the other",
        "frozen, then stopped",
        "frozen with a transaction",
    ],
)
def test_what_the_faults_explain_is_no_finding(evidence: Evidence) -> None:
    assert audit(evidence) == []


def test_a_recovery_is_measured_from_the_fall_to_the_next_beginning() -> None:
    lines = lines_of_first(ran(1, end=None), ran(1, 2, at=5, node=OTHER))
    assert recoveries(replace(GOOD, rows=CRASHED_ONCE, lines=lines, falls=[Fall(NODE, 1.5)])) == [3.5]
