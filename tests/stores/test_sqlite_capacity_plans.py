"""A claim on SQLite looks at what the node can run and at nothing else, however many tasks and kinds there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.stores.actions import amounts, demands, new_node
from tests.stores.conftest import bound, make_folder

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims, KindRequest
from synergon.model.requirements import parse_requirements
from synergon.stores.session import drive
from synergon.stores.sqlite import candidates, leases, schema
from synergon.stores.sqlite.claim import claim
from synergon.stores.sqlite.session import Session
from synergon.stores.sqlite.transaction import IssuedIds, Transaction
from synergon.stores.statements import statements

SQL: Final = statements("sqlite")
ROWS: Final = 100_000
NOW: Final = 1_700_000_000_000_000

FIT: Final = demands("here", cpu=1)
UNFIT: Final = (demands("elsewhere"), demands(cpu=99), demands(cpu=3), demands(forbids="here"))
"""It lacks a label, is too small, has no room now, has a label that is not wanted."""

LANE: Final = "synergon_task_ready (kind=? AND queue=? AND requirements=?)"
WORK: Final = KindRequest(kind="work", count=100)
NODE: Final[dict[str, Any]] = {
    "node_id": "node",
    "limit": 100,
    "labels": frozenset({"here"}),
    "totals": amounts(cpu=8),
    "free": amounts(cpu=2),
    "shares": (amounts(cpu=1),),
}


class Lot(NamedTuple):
    """So many ready tasks."""

    size: int
    kind: str = "work"
    requirements: str = ""
    priority: int = 0
    queue: str = "default"


@contextmanager
def file_with(lots: Sequence[Lot]) -> Iterator[sqlite3.Connection]:
    """A file with a node and these tasks."""
    with make_folder() as folder:
        path = Path(folder) / "tasks.db"
        schema.prepare(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            transaction = Transaction(connection, IssuedIds(path))
            leases.register(transaction, new_node("node"))
            transaction.flush()
            for lot in lots:
                connection.execute(
                    "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :size) "
                    "INSERT INTO synergon_task "
                    "(kind, queue, state, priority, run_at, payload, enqueued_at, requirements) "
                    "SELECT :kind, :queue, 'ready', :priority, :now, x'7b7d', :now, :requirements FROM number",
                    lot._asdict() | {"now": NOW},
                )
            connection.execute("COMMIT")
            yield connection


@pytest.fixture(scope="module")
def crowd() -> Iterator[sqlite3.Connection]:
    """A hundred thousand tasks that do not fit, all of them before three that do."""
    unfit = [Lot(ROWS // len(UNFIT), requirements=requirements, priority=1) for requirements in UNFIT]
    with file_with([*unfit, Lot(3, requirements=FIT)]) as connection:
        yield connection


@pytest.fixture(scope="module")
def few() -> Iterator[sqlite3.Connection]:
    """The same with one of each."""
    with file_with(
        [*(Lot(1, requirements=requirements, priority=1) for requirements in UNFIT), Lot(3, requirements=FIT)]
    ) as connection:
        yield connection


class Measured(NamedTuple):
    """What came of a piece of work, and what it cost."""

    answer: Any
    steps: int
    """Instructions of SQLite's machine: a row that is looked at costs some."""
    statements: int


def measure(connection: sqlite3.Connection, work: Callable[[Session], Any]) -> Measured:
    """Do it, count, and undo it."""
    steps, texts = 0, list[str]()

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.execute("BEGIN IMMEDIATE")
    connection.set_progress_handler(count, 1)
    connection.set_trace_callback(texts.append)
    try:
        answer = work(Session(connection, IssuedIds(Path("none.db"))))
    finally:
        connection.set_progress_handler(None, 1)
        connection.set_trace_callback(None)
        connection.execute("ROLLBACK")
    return Measured(answer, steps, len(texts))


def claims(connection: sqlite3.Connection, *kind_requests: KindRequest, **more: Any) -> Measured:
    """A claim of the node."""
    request = ClaimRequest(kinds=kind_requests, **{**NODE, **more})
    return measure(connection, lambda session: drive(claim(session, request)))


def kinds_of(taken: Claims) -> list[str]:
    return [one.kind for one in taken]


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize("patience", [None, 0], ids=["impatient", "patient"])
def test_a_node_that_can_run_one_of_many_demands_looks_at_nothing_else(
    crowd: sqlite3.Connection, few: sqlite3.Connection, patience: int | None
) -> None:
    beside_many, beside_few = (claims(one, WORK, patience=patience) for one in (crowd, few))
    if patience is None:
        assert [one.requirements for one in beside_many.answer] == [FIT, FIT]
    else:
        assert beside_many.answer.reserved.requirements == parse_requirements(UNFIT[2])
    assert beside_many.statements == beside_few.statements
    assert beside_many.steps <= beside_few.steps * 1.1


def test_a_look_passes_over_what_could_never_run_here(crowd: sqlite3.Connection, few: sqlite3.Connection) -> None:
    later = CandidateQuery(kind_request=WORK, labels=frozenset({"here"}), totals=amounts(cpu=8), after=(1, 0, ROWS))
    beside_many, beside_few = (measure(one, partial(candidates.read_candidates, query=later)) for one in (crowd, few))
    assert [record.requirements for record in beside_many.answer] == [FIT] * 3
    assert beside_many.steps <= beside_few.steps * 1.1


def test_ten_thousand_that_were_looked_at_do_not_slow_the_look_at_the_next(crowd: sqlite3.Connection) -> None:
    (first,) = crowd.execute("SELECT min(id) FROM synergon_task WHERE requirements = ?", (UNFIT[2],)).fetchone()
    looks = [
        CandidateQuery(
            kind_request=WORK, totals=amounts(cpu=8), labels=frozenset({"here"}), after=(1, 0, first + seen), limit=10
        )
        for seen in (10, 10_000)
    ]
    early, late = (measure(crowd, partial(candidates.read_candidates, query=one)) for one in looks)
    assert [record.id for record in late.answer] == [first + 10_000 + number for number in range(1, 11)]
    assert late.steps <= early.steps * 1.1


def test_what_goes_before_a_task_is_not_counted_past_the_limit(crowd: sqlite3.Connection) -> None:
    (last,) = crowd.execute("SELECT max(id) FROM synergon_task").fetchone()
    counted = measure(crowd, lambda transaction: candidates.ahead(transaction, last, 1000))
    assert counted.answer == 1000
    assert counted.steps < 20 * 1000 * len(UNFIT)


# ---------------------------------------------------------------- kinds that have no tasks


@pytest.fixture(scope="module")
def kinds() -> Iterator[sqlite3.Connection]:
    """One kind of two hundred has tasks, and so have many that this node does not run."""
    foreign = [Lot(1, kind=f"other-{number}") for number in range(300)]
    with file_with([Lot(1000, kind="kind-77"), *foreign]) as connection:
        yield connection


@pytest.mark.parametrize("more", [{}, {"limits": ("license",)}, {"requirements": parse_requirements(FIT)}], ids=str)
def test_two_hundred_kinds_of_which_one_has_tasks_cost_as_much_as_one(
    kinds: sqlite3.Connection, more: dict[str, Any]
) -> None:
    kind_requests = [KindRequest(kind=f"kind-{number}", count=2, **more) for number in range(200)]
    of_all, of_one = claims(kinds, *kind_requests), claims(kinds, kind_requests[77])
    assert kinds_of(of_all.answer) == kinds_of(of_one.answer) == ["kind-77"] * 2
    assert of_all.statements <= of_one.statements + 2
    assert of_all.steps <= of_one.steps * 1.2


def test_every_kind_that_has_tasks_is_found(kinds: sqlite3.Connection) -> None:
    names = ["other-299", "kind-0", "other-3", "aaa", "kind-77", "zzz", "other-30"]
    found = claims(kinds, *(KindRequest(kind=name, count=1) for name in names))
    assert sorted(kinds_of(found.answer)) == ["kind-77", "other-299", "other-3", "other-30"]


# ---------------------------------------------------------------- plans


@pytest.fixture(params=["analyzed", "not analyzed"])
def planner(request: pytest.FixtureRequest, crowd: sqlite3.Connection) -> sqlite3.Connection:
    """With and without statistics, which must not matter."""
    if request.param == "analyzed":
        crowd.execute("ANALYZE")
    else:
        crowd.execute("DROP TABLE IF EXISTS sqlite_stat1")
        crowd.execute("DROP TABLE IF EXISTS sqlite_stat4")
    return crowd


def plan(connection: sqlite3.Connection, name: str, *parameters: Any, **named: Any) -> list[str]:
    """How the rows of tasks are found, and what is sorted."""
    steps = [
        row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", bound(SQL[name], parameters) or named)
    ]
    return [step for step in steps if "synergon_task" in step or "TEMP B-TREE" in step]


def test_lanes_are_found_by_jumping(planner: sqlite3.Connection) -> None:
    # Newer versions of SQLite see that the index has all that is asked for.
    index = r"SEARCH synergon_task USING (COVERING )?INDEX synergon_task_ready \(kind"
    steps = plan(planner, "groups_of_kind", kind="work")
    assert len(steps) == 4
    assert all(re.match(rf"{index}=\?", step) for step in steps)
    (step,) = plan(planner, "next_kind", "work")
    assert re.fullmatch(rf"{index}>\?\)", step)


def test_a_lane_is_read_in_order(planner: sqlite3.Connection) -> None:
    (step,) = plan(planner, "first_ready", "work", "default", FIT, NOW, 10)
    assert step == f"SEARCH synergon_task USING INDEX {LANE}"


def test_what_goes_before_a_task_is_counted_by_index(planner: sqlite3.Connection) -> None:
    position = {"kind": "work", "priority": 0, "fair_tag": 0, "id": 1, "limit": 1000}
    first, second, third = plan(planner, "ahead_in_ready_group", queue="default", requirements=FIT, **position)
    assert "INDEX synergon_task_ready (kind=? AND queue=? AND requirements=? AND priority>?)" in first
    assert "INDEX synergon_task_ready (kind=? AND queue=? AND requirements=? AND priority=? AND fair_tag<?)" in second
    assert (
        "INDEX synergon_task_ready (kind=? AND queue=? AND requirements=? AND priority=? AND fair_tag=? AND id<?)"
        in third
    )
    first, second = plan(planner, "ahead_in_key_queue", state="waiting", limit_key="key", **position)
    assert "COVERING INDEX synergon_task_key_queue (kind=? AND state=? AND limit_key=? AND priority>?)" in first
    assert (
        "COVERING INDEX synergon_task_key_queue (kind=? AND state=? AND limit_key=? AND priority=? AND id<?)" in second
    )


@pytest.mark.parametrize("name", ["ready_among", "reservation", "reserve", "charge", "position"])
def test_single_tasks_are_found_by_id(planner: sqlite3.Connection, name: str) -> None:
    steps = plan(planner, name, *["[]"] * len(re.findall(r"\?|\$\d", SQL[name])))
    assert steps == ["SEARCH synergon_task USING INTEGER PRIMARY KEY (rowid=?)"]
