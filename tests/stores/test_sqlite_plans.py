"""The statements of SQLite that run all the time find their rows by index, however many tasks wait in lines."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from tests.stores.conftest import bound, make_folder

from synergon.stores.sqlite import schema
from synergon.stores.statements import statements

SQL: Final = statements("sqlite")
ROWS: Final = 100_000
KEY_QUEUES: Final = 500
NOW: Final = 1_700_000_000_000_000

NAMES: Final = ("work", "key-1", "work", "key-2")
KEY_QUEUE: Final = "SEARCH task USING COVERING INDEX synergon_task_key_queue (kind=? AND state=? AND limit_key=?)"
BY_ID: Final = "SEARCH synergon_task USING INTEGER PRIMARY KEY (rowid=?)"


@pytest.fixture(scope="module")
def backlog() -> Iterator[sqlite3.Connection]:
    """A hundred thousand tasks that wait in lines, each of which has one that is ready and one that runs."""
    with make_folder() as folder:
        path = Path(folder) / "tasks.db"
        schema.prepare(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :rows) "
                "INSERT INTO synergon_task (id, kind, queue, state, priority, run_at, payload, enqueued_at, limit_key, "
                "node_id, holds) SELECT n, 'work', 'default', CASE WHEN n <= :lines THEN 'running' "
                "WHEN n <= 2 * :lines THEN 'ready' ELSE 'waiting' END, n % 3, :now, x'7b7d', :now, "
                "'key-' || n % :lines, CASE WHEN n <= :lines THEN 'node' END, "
                "CASE WHEN n <= :lines THEN 'license' END FROM number",
                {"rows": ROWS, "lines": KEY_QUEUES, "now": NOW},
            )
            connection.commit()
            yield connection


@pytest.fixture(params=["analyzed", "not analyzed"])
def planner(request: pytest.FixtureRequest, backlog: sqlite3.Connection) -> sqlite3.Connection:
    """With and without statistics, which must not matter."""
    if request.param == "analyzed":
        backlog.execute("ANALYZE")
    else:
        backlog.execute("DROP TABLE IF EXISTS sqlite_stat1")
        backlog.execute("DROP TABLE IF EXISTS sqlite_stat4")
    backlog.commit()
    return backlog


def plan(connection: sqlite3.Connection, name: str, *parameters: Any, **named: Any) -> list[str]:
    """How the rows of tasks are found, and what is sorted."""
    sql = SQL[name].replace("{names}", "(?, ?), (?, ?)")
    steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bound(sql, parameters) or named)]
    return [step for step in steps if "task" in step or "TEMP B-TREE" in step]


def in_old_words(step: str) -> str:
    """Without what only newer versions of SQLite say."""
    return step.replace("COVERING ", "").replace("EXISTS ", "")


def test_no_statement_has_numbered_parameters() -> None:
    """Up to 3.12.3, Python 3.12 takes them for named ones, and warns of each that is given by its place."""
    assert not [name for name, text in SQL.items() if re.search(r"\?\d", text)]


def test_key_queues_are_counted_by_the_index_alone(planner: sqlite3.Connection) -> None:
    assert plan(planner, "key_queue_counts", *NAMES, 2) == [KEY_QUEUE] * 5


def test_the_first_waiting_tasks_are_found_without_sorting(planner: sqlite3.Connection) -> None:
    assert plan(planner, "first_waiting", "work", "key-1", 2) == [
        KEY_QUEUE.replace("task USING", "synergon_task USING")
    ]


def test_tasks_in_excess_are_found_by_the_index_alone(planner: sqlite3.Connection) -> None:
    steps = plan(planner, "excess", "work", "key-1", 2)
    assert [step for step in steps if "SEARCH" in step] == [KEY_QUEUE.replace("task USING", "synergon_task USING")] * 3
    assert not [step for step in steps if "SCAN" in step]


@pytest.mark.parametrize("name", ["promote", "demote"])
def test_moves_within_a_line_go_by_id(planner: sqlite3.Connection, name: str) -> None:
    assert plan(planner, name, "[1, 2]") == [BY_ID]


def test_an_unlimited_key_queue_is_promoted_by_its_index(planner: sqlite3.Connection) -> None:
    assert plan(planner, "promote_all", *NAMES) == [BY_ID, KEY_QUEUE]


def test_the_key_queues_of_a_kind_are_found_by_jumping(planner: sqlite3.Connection) -> None:
    found = plan(planner, "key_queues_of_kind", "work")
    steps = [step for step in found if "TEMP B-TREE FOR DISTINCT" not in step]
    assert len(steps) == 2
    assert all(step.startswith("SEARCH") and "synergon_task_key_queue" in step for step in steps)


def test_what_is_held_is_read_from_the_index_of_what_is_held(planner: sqlite3.Connection) -> None:
    (step,) = plan(planner, "running_permits")
    assert "COVERING INDEX synergon_task_holding" in step


def test_a_claim_under_limits_finds_ready_tasks_in_order_and_takes_them_by_id(planner: sqlite3.Connection) -> None:
    (step,) = plan(planner, "first_ready", "work", "default", "", NOW, 500)
    assert step == "SEARCH synergon_task USING INDEX synergon_task_ready (kind=? AND queue=? AND requirements=?)"
    assert plan(planner, "take", node_id="node", now=NOW, taken="[]") == [BY_ID]


def test_commands_are_found_by_the_servers_that_they_are_for(planner: sqlite3.Connection) -> None:
    target = "SEARCH synergon_task USING INDEX synergon_task_target (kind=? AND target{}?)"
    for server in (None, "a"):
        assert plan(planner, "ready_commands", "gpu.stop", server, NOW, 500) == [target.format("=")]
    steps = [in_old_words(step) for step in plan(planner, "wanted_servers", kind="gpu.stop")]
    assert sorted(steps) == sorted([target.format("="), target.format(">"), target.format(">")])


def test_due_and_scheduled_tasks_of_a_key_queue_are_found_by_their_moment(planner: sqlite3.Connection) -> None:
    steps = plan(planner, "key_queue_rates", *NAMES, NOW)
    assert len(steps) == 2
    assert "synergon_task_deferred (kind=? AND limit_key=? AND run_at<?)" in steps[0]
    assert "synergon_task_deferred (kind=? AND limit_key=? AND run_at>?)" in steps[1]
    (step,) = plan(planner, "queue_due", "work", "key-1", NOW)
    assert "synergon_task_deferred (kind=? AND limit_key=? AND run_at<?)" in step
    assert plan(planner, "postpone", "[[1, 2]]") == [BY_ID]


def test_whether_a_group_has_live_tasks_is_one_probe(planner: sqlite3.Connection) -> None:
    steps = plan(planner, "end_empty_groups", "[1, 2]")
    assert any("synergon_task_group (group_id=?)" in step for step in steps)


def test_dependents_are_found_by_what_they_need(planner: sqlite3.Connection) -> None:
    for name in ("open_dependents", "dependents", "doomed", "cancelled_with"):
        assert "synergon_dependency_needed (needs_id=?)" in "".join(all_steps(planner, name, "[1, 2]"))
    assert "synergon_dependency_needed (needs_id=?)" in "".join(
        all_steps(planner, "close_dependencies", "[1, 2]", "failed")
    )


def test_an_open_dependency_is_found_without_reading_the_others(planner: sqlite3.Connection) -> None:
    steps = all_steps(planner, "release_dependents", "[1]")
    assert any("INDEX synergon_dependency_open (task_id=?)" in step for step in steps)
    assert "synergon_task_unsettled (run_at<?)" in "".join(all_steps(planner, "unsettled", 100))


def all_steps(connection: sqlite3.Connection, name: str, *parameters: Any) -> list[str]:
    """The steps over all tables."""
    return [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + SQL[name], bound(SQL[name], parameters))]


def test_the_next_turn_of_a_tenant_is_found_by_one_step_in_each_index(planner: sqlite3.Connection) -> None:
    (first,) = plan(planner, "smallest_ready_tag", "work", "default", "", 0)
    assert "INDEX synergon_task_ready (kind=? AND queue=? AND requirements=? AND priority=? AND fair_tag>?)" in first
    (started,) = plan(planner, "largest_started_tag", "work", 0)
    assert "INDEX synergon_task_started (kind=? AND priority=? AND fair_tag>?)" in started
    (tenant,) = plan(planner, "largest_live_tags", '[["work", 0, "acme"]]')
    (oldest,) = plan(planner, "oldest_with_tags", "work", "default", "", 0, 10)
    assert "INDEX synergon_task_oldest (kind=? AND queue=? AND requirements=? AND priority=?)" in oldest
    assert "INDEX synergon_task_tenant (kind=? AND fair_key=? AND priority=? AND fair_tag>?)" in tenant


def test_tasks_are_claimed_in_the_order_of_turns_without_sorting(planner: sqlite3.Connection) -> None:
    (ready,) = plan(planner, "ready", "work", "default", "", NOW, 100)
    assert "INDEX synergon_task_ready (kind=? AND queue=? AND requirements=?)" in ready
