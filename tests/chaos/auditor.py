"""Holds the end of a chaos to the promises: what the database says, against what was written down on the way.

It sees no statement, as the auditor of the simulator does; it sees which ids were accepted, each word of each
execution, what was done to the nodes and to the database, and the rows as they are when all is quiet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.chaos.evidence import Event, Evidence, FlowRow, Line, Outage, Row

from synergon import Reason, State
from synergon.policies import OWNER_DEATH_LIMIT

PROMPTLY_SECONDS: Final = 3.0
"""How soon a node that stood still must have stopped its bodies. The engine gives them one second."""
FALL_SECONDS: Final = 0.5
"""A fall is written down before the signal is sent; the node, and its children after it, may go on for a moment."""
ENDS: Final = {Event.RETURNS, Event.RAISES, Event.IS_STOPPED}


@dataclass(frozen=True, slots=True)
class Execution:
    """One claim's run of a body, by its own words."""

    task_id: int
    claim_no: int
    node_pid: int
    lines: tuple[Line, ...]

    @property
    def began(self) -> float:
        """When."""
        return self.lines[0].at

    @property
    def last(self) -> Line:
        """Its latest word."""
        return self.lines[-1]

    @property
    def has_ended(self) -> bool:
        """Whether it said so."""
        return self.last.event in ENDS


def audit(evidence: Evidence) -> list[str]:
    """The promises that were broken, one sentence each."""
    return list(Auditor(evidence).findings())


def recoveries(evidence: Evidence) -> list[float]:
    """How long the work of each node that fell waited until it ran again, task by task."""
    auditor = Auditor(evidence)
    seconds: list[float] = []
    for fall in evidence.falls:
        for runs in auditor.runs.values():
            for run, following in pairwise(runs):
                if run.node_pid == fall.node_pid and not run.has_ended and run.began <= fall.at <= following.began:
                    seconds.append(following.began - fall.at)
    return seconds


class Auditor:
    """Judges one chaos."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._soon_seconds = evidence.soon_seconds
        self._rows = {row.id: row for row in evidence.rows}
        self._lines: dict[tuple[int, int], list[Line]] = defaultdict(list)
        for line in evidence.lines:
            self._lines[line.task_id, line.claim_no].append(line)
        self.runs: dict[int, list[Execution]] = defaultdict(list)
        """The executions of each task, by claim."""
        for (task_id, claim_no), lines in sorted(self._lines.items()):
            lines.sort(key=lambda line: line.at)
            self.runs[task_id].append(Execution(task_id, claim_no, lines[0].node_pid, tuple(lines)))

    def findings(self) -> Iterator[str]:
        """All that is wrong."""
        yield from self._places()
        for row in self._rows.values():
            yield from (f"task {row.id} ({row.kind}): {what}" for what in self._end(row))
        for task_id, runs in self.runs.items():
            yield from (f"task {task_id}: {what}" for what in self._runs(task_id, runs))
        yield from self._effects()
        yield from self._children()
        yield from self._batches()
        yield from self._flows()
        yield from self._occurrences()
        yield from (f"node {node_id} is dead, and its row is still there" for node_id in self._evidence.strange_nodes)

    # ------------------------------------------------------------ every accepted task is in exactly one place

    def _places(self) -> Iterator[str]:
        for task_id, number in Counter(row.id for row in self._evidence.rows).items():
            if number > 1:
                yield f"task {task_id} is in {number} places"
        for task_id, number in Counter(self._evidence.accepted).items():
            if task_id not in self._rows:
                yield f"task {task_id} was accepted and is lost"
            if number > 1:
                yield f"task {task_id} was accepted {number} times"
        for task_id in self.runs.keys() - self._rows.keys():
            yield f"task {task_id} ran and is in no place"

    # ------------------------------------------------------------ and has ended as its arguments say

    def _end(self, row: Row) -> Iterator[str]:
        if not row.is_history:
            yield f"it has not ended: it is {row.state}"
            return
        if row.crashes:
            yield f"it has crashed {row.crashes} times, and no child died under it"
        if (row.owner_deaths >= OWNER_DEATH_LIMIT) != (row.reason is Reason.CRASHED):
            yield f"it is {row.state}({row.reason}) and has lost {row.owner_deaths} owners"
        if row.owner_deaths and not (self._evidence.falls or self._evidence.pauses or self._evidence.outages):
            yield f"it has lost {row.owner_deaths} owners, and nothing was done to anybody"
        is_mended = row.kind == "mended" and row.state is State.SUCCEEDED
        wanted_to_fail = 0 if is_mended else int(row.arguments.get("fails", 0))
        match row.state, row.reason:
            case State.SUCCEEDED, None:
                if row.attempts != wanted_to_fail + 1 and not (self._pays_for_outages(row) or self._held_too_long(row)):
                    said = f": {row.errors}" if row.errors else ""
                    yield f"it has succeeded in attempt {row.attempts} instead of {wanted_to_fail + 1}{said}"
                yield from self._last_word(row, Event.RETURNS)
            case State.FAILED, Reason.EXHAUSTED:
                if row.attempts != row.max_attempts or wanted_to_fail < row.attempts:
                    yield f"it is exhausted after {row.attempts} of {row.max_attempts} attempts"
                yield from self._last_word(row, Event.RAISES)
            case State.FAILED, Reason.CRASHED:
                pass
            case State.CANCELLED, Reason.DEPENDENCY if row.flow_id is not None:
                pass  # the flow says whether it should be
            case _:
                yield f"it should not be {row.state}({row.reason})"

    def _pays_for_outages(self, row: Row) -> bool:
        """A body that uses the database fails with it, which is an attempt like any other."""
        return row.kind == "ledger" and bool(self._evidence.outages)

    def _held_too_long(self, row: Row) -> bool:
        """Its node stood still with a transaction in its hands, which is rolled back then: an attempt, too."""
        return row.kind == "ledger" and any(
            pause.node_pid == run.node_pid
            and pause.began <= run.last.at + self._soon_seconds
            and run.began <= pause.ended
            for run in self.runs[row.id]
            for pause in self._evidence.pauses
        )

    def _last_word(self, row: Row, event: Event) -> Iterator[str]:
        """The outcome that counts is the last claim's. A map runs no body. What a batch did is written down by the task
        that led it; that one may have run again since."""
        if row.is_map:
            return
        if row.batch_id is not None and row.batch_id != row.id:
            if all(run.last.event is not event for run in self.runs.get(row.batch_id, ())):
                yield f"it is {row.state}, and of its batch, led by task {row.batch_id}, no body said {event}"
            return
        said = [line.event for line in self._lines.get((row.id, row.claim_no), ()) if line.event in ENDS]
        if set(said) != {event}:
            yield f"it is {row.state} by claim {row.claim_no}, whose body said {said}"

    # ------------------------------------------------------------ no two executions at once, and none for nothing

    def _runs(self, task_id: int, runs: list[Execution]) -> Iterator[str]:
        for run in runs:
            events = Counter(line.event for line in run.lines)
            if events[Event.BEGINS] != 1:
                yield f"claim {run.claim_no} began {events[Event.BEGINS]} times"
            if sum(events[end] for end in ENDS) > 1:
                yield f"claim {run.claim_no} ended more than once"
        last = self._rows.get(task_id)
        if last is not None and runs[-1].claim_no > last.claim_no:
            yield f"claim {runs[-1].claim_no} ran, and the database knows {last.claim_no}"
        if last is None or last.kind != "batched":  # those are judged with their batches
            yield from self._repetitions(runs)

    def _repetitions(self, runs: list[Execution]) -> Iterator[str]:
        """What is wrong between one execution of a task and the next."""
        for run, following in pairwise(runs):
            if run.last.at > following.began and not self._was_standing_still(run, following):
                late = run.last.at - following.began
                yield (
                    f"claim {run.claim_no} on {run.node_pid} still {run.last.event} {late:.3f} s after claim "
                    f"{following.claim_no} began on {following.node_pid}"
                )
            if run.last.event is Event.RETURNS and not self._may_be_repeated(run):
                yield f"claim {run.claim_no} returned on {run.node_pid}, and claim {following.claim_no} ran it again"

    def _was_standing_still(self, run: Execution, following: Execution) -> bool:
        """Its node stood still when the other one began, and stopped it soon after it went on."""
        return any(
            pause.node_pid == run.node_pid
            and pause.began <= following.began
            and run.last.at <= pause.ended + PROMPTLY_SECONDS
            for pause in self._evidence.pauses
        )

    def _may_be_repeated(self, run: Execution) -> bool:
        """Its outcome could not be written: its node fell or stood still first, or was cut off for most of a lease."""
        evidence, returned = self._evidence, run.last.at
        outages = [outage for outage in self._joined if outage.began - self._soon_seconds <= returned <= outage.ended]
        written_by = max([returned, *(outage.ended for outage in outages)]) + self._soon_seconds
        fell_from = returned - FALL_SECONDS
        row = self._rows.get(run.task_id)
        return (
            any(fall.node_pid == run.node_pid and fell_from <= fall.at <= written_by for fall in evidence.falls)
            or any(
                pause.node_pid == run.node_pid
                and pause.began <= written_by
                and returned <= pause.ended + self._soon_seconds
                for pause in evidence.pauses
            )
            or any(outage.seconds > evidence.lease_seconds / 2 for outage in outages)
            or (row is not None and self._pays_for_outages(row) and self._was_cut_off(returned))
        )

    @property
    def _joined(self) -> list[Outage]:
        """The outages, as a node meets them: one that follows another before the next beat of the lease prolongs it."""
        joined: list[Outage] = []
        for outage in sorted(self._evidence.outages, key=lambda outage: outage.began):
            last = joined.pop() if joined else outage
            if outage.began - last.ended > self._evidence.lease_seconds / 6:
                joined += [last, outage]
            else:
                joined.append(Outage(last.began, max(last.ended, outage.ended)))
        return joined

    def _was_cut_off(self, returned: float) -> bool:
        """A connection that was cut is met a moment later, when its transaction should be committed."""
        return any(
            outage.began - self._soon_seconds <= returned <= outage.ended + self._soon_seconds
            for outage in self._evidence.outages
        )

    # ------------------------------------------------------------ what was committed with a success, and not otherwise

    def _effects(self) -> Iterator[str]:
        effects: dict[int, list[int]] = defaultdict(list)
        for effect in self._evidence.effects:
            effects[effect.task_id].append(effect.claim_no)
        for row in self._rows.values():
            wanted = [row.claim_no] if row.kind == "ledger" and row.state is State.SUCCEEDED else []
            found = effects.pop(row.id, [])
            if found != wanted:
                yield f"task {row.id} is {row.state} by claim {row.claim_no}, and effects were written by {found}"
        yield from (f"task {task_id} is lost, and its effects are there" for task_id in effects)

    def _children(self) -> Iterator[str]:
        found = Counter(
            (row.arguments["parent_id"], row.arguments["number"]) for row in self._evidence.rows if row.kind == "child"
        )
        for row in self._rows.values():
            if row.kind != "parent":
                continue
            for number in range(row.arguments["children"]):
                wanted, there = int(row.state is State.SUCCEEDED), found.pop((row.id, number), 0)
                if there != wanted:
                    yield f"task {row.id} is {row.state}, and its child {number} is there {there} times"
        yield from (f"task {parent_id} has a child {number} it never had" for parent_id, number in found)

    # ------------------------------------------------------------ every item of a batch is a task of its own

    def _batches(self) -> Iterator[str]:
        executions = {(run.task_id, run.claim_no): run for runs in self.runs.values() for run in runs}
        runs_of: dict[str, list[Execution]] = defaultdict(list)
        for batch in self._evidence.batches:
            run = executions.get((batch.leader_id, batch.claim_no))  # None: it was killed before it began
            for token in batch.tokens if run is not None else ():
                assert run is not None
                runs_of[token].append(run)
        for row in self._rows.values():
            if row.kind != "batched":
                continue
            token = row.arguments["items"]["token"]
            runs = sorted(runs_of.pop(token, []), key=lambda run: run.began)
            yield from (f"task {row.id}: {what}" for what in self._repetitions(runs))
            if row.state is State.SUCCEEDED and (not runs or runs[-1].last.event is not Event.RETURNS):
                yield f"task {row.id} has succeeded, and its last batch has not returned"
            if row.state is State.SUCCEEDED and row.result != token:
                yield f"task {row.id} has the result {row.result!r} of another item"
        yield from (f"item {token} ran, and is in no place" for token in runs_of)

    # ------------------------------------------------------------ steps of flows run after what they need

    def _flows(self) -> Iterator[str]:
        steps: dict[int, list[Row]] = defaultdict(list)
        for row in self._rows.values():
            if row.flow_id is not None:
                steps[row.flow_id].append(row)
        for flow in self._evidence.flows:
            found = steps.pop(flow.id, [])
            yield from (f"flow {flow.id}: {what}" for what in self._flow(flow, found))
        yield from (f"flow {flow_id} is lost, and its steps are there" for flow_id in steps)

    def _flow(self, flow: FlowRow, rows: list[Row]) -> Iterator[str]:
        states = {row.state for row in rows}
        if any(not state.is_final for state in states):
            return  # which is told of the task
        wanted = next((state for state in (State.FAILED, State.CANCELLED) if state in states), State.SUCCEEDED)
        if flow.state is not wanted:
            yield f"it is {flow.state}, and its steps make it {wanted}"
        kinds = Counter("map" if row.is_map else row.kind for row in rows)
        if any(kinds[kind] != 1 for kind in ("listed", "map", "summed")) or kinds["mended"] > 1:
            yield f"it has the steps {dict(kinds)}"
            return
        first, last = (next(row for row in rows if row.kind == kind) for kind in ("listed", "summed"))
        mapper = next(row for row in rows if row.is_map)
        items = [row for row in rows if row.kind == "doubled" and not row.is_map]
        mended = [row for row in rows if row.kind == "mended"]
        was_retried = any(row.arguments["label"] in self._evidence.retried for row in mended)
        if was_retried and not _has_ended_well(mended[0]):
            yield f"its step {mended[0].id} was mended and retried, and is {mended[0].state}"
        numbers = sorted(row.arguments["number"] for row in items)
        if numbers != (list(range(first.arguments["count"])) if mapper.state is State.SUCCEEDED else []):
            yield f"its map is {mapper.state}, and has created {numbers}"
        yield from (
            f"its item {row.id} has the result {row.result}"
            for row in items
            if row.state is State.SUCCEEDED and row.result != 2 * row.arguments["number"]
        )
        yield from self._dependent(mapper, [first], if_fails="cancel")
        yield from self._dependent(last, [mapper, *items, *mended], if_fails=last.arguments["if_fails"])
        total = sum(row.result for row in items if row.state is State.SUCCEEDED)
        if last.state is State.SUCCEEDED and last.result != total:
            yield f"its last step has the result {last.result} instead of {total}"
        for row in items:
            yield from self._order(row, [first])
        if last.arguments["if_fails"] == "cancel" or not was_retried:
            yield from self._order(last, [*items, *mended])

    def _dependent(self, row: Row, needs: list[Row], *, if_fails: str) -> Iterator[str]:
        """A step is cancelled if, and only if, one that it cannot do without has not succeeded."""
        has_failed = any(need.state is not State.SUCCEEDED for need in needs)
        is_right = row.reason is Reason.DEPENDENCY if has_failed and if_fails == "cancel" else _has_ended_well(row)
        if not is_right:
            said = ", ".join(f"{need.id} {need.state}" for need in needs)
            yield f"its step {row.id} is {row.state}({row.reason}), and needs {said}"

    def _order(self, row: Row, needs: list[Row]) -> Iterator[str]:
        """A step begins when the last executions of those that it needs have ended."""
        for run in self.runs.get(row.id, [])[:1]:
            for need in needs:
                for ended in self.runs.get(need.id, [])[-1:]:
                    if ended.last.at > run.began:
                        yield f"its step {row.id} began before step {need.id} had ended"

    # ------------------------------------------------------------ every occurrence of a schedule is one task

    def _occurrences(self) -> Iterator[str]:
        created = Counter((row.schedule, row.scheduled_for) for row in self._evidence.rows if row.schedule is not None)
        for (name, moment), number in created.items():
            if number > 1:
                yield f"schedule {name} has created {number} tasks for its occurrence at {moment}"
        for schedule in self._evidence.schedules:
            number = sum(name == schedule.name for name, _ in created)
            if number != schedule.times_fired:
                yield f"schedule {schedule.name} counts {schedule.times_fired} and has created {number}"
            if schedule.times_missed:
                yield f"schedule {schedule.name} has missed {schedule.times_missed}, and all were to run"
            assert schedule.every is not None
            assert schedule.next_at is not None
            passed = (schedule.next_at - schedule.created_at) // schedule.every - 1
            counted = schedule.times_fired + schedule.times_missed + schedule.times_skipped
            if counted != passed:
                yield f"schedule {schedule.name} has lost an occurrence: {passed} have passed, it counts {counted}"


def _has_ended_well(row: Row) -> bool:
    """Whether it has succeeded. A task that many workers died with is excused."""
    return row.state is State.SUCCEEDED or row.reason is Reason.CRASHED
