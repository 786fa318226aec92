"""synergon in a real Django project: views enqueue, `manage.py synergon_worker` runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contrib.django_support import Project, orders, project_on, remove

from synergon import State

pytest.importorskip("django", reason="Django is not installed")

EXPECTED = {
    "ship": "shipped",
    "ship_async": "shipped by a coroutine",
    "ship_in_process": "shipped by a process",
    "ship_async_in_process": "shipped by a coroutine of a process",
    "open_connections": "seen",
    "ship_after_lost_connection": "shipped with a new connection",
}
"""The state of an order after each kind."""


@pytest.fixture(params=("sqlite", "postgres"))
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """The project on each database in turn."""
    made = project_on(request.param, tmp_path)
    yield made
    remove(made)


def test_views_enqueue_in_transactions_and_the_worker_runs_what_was_committed(project: Project) -> None:
    paths = [f"/order/{kind}" for kind in EXPECTED]
    *stored, later, asynchronous, refused = project.run_json(
        "visit.py", *paths, "/order-later", "/order-async", "/refuse"
    )
    assert refused == {"error": "sold out"}
    assert orders(project) == {answer["order"]: "new" for answer in [*stored, later, asynchronous]}

    project.manage("synergon_worker", "--drain", "--concurrency=1", "--threads=1")

    assert list(orders(project).values()) == [*EXPECTED.values(), "shipped", "shipped"]
    with project.engine as engine:
        tasks = {task.id: task for task in engine.tasks_sync()}
        assert [tasks[answer["task"]].kind for answer in stored] == list(EXPECTED)
        assert {task.state for task in tasks.values()} == {State.SUCCEEDED}
        assert len(tasks) == len(EXPECTED) + 2, "what was rolled back is not there"
        is_postgres = "postgresql" in project.url
        by_kind = {task.kind: task for task in tasks.values()}
        assert by_kind["ship_after_lost_connection"].attempts == (2 if is_postgres else 1)
        assert by_kind["open_connections"].result == [int(is_postgres), 0], "CONN_MAX_AGE decides"


def test_mistakes_are_errors_where_they_are_made(tmp_path: Path) -> None:
    said = project_on("sqlite", tmp_path).run_json("mistakes.py")
    no_transaction = "OptionError: the connection 'default' of Django has no transaction open"
    assert said["without_transaction"].startswith(no_transaction)
    assert said["beside_transaction"].startswith("OptionError: Django has a transaction open on the SQLite file")
    assert said["in_coroutine"].startswith(no_transaction)
    assert said["wrong_arguments_on_commit"].startswith("PayloadError: the payload of task 'ship' does not fit")
    assert said["in_test_database"].startswith("ImproperlyConfigured: Django uses the database 'test_of_it'")
    assert (said["joined_in_tests"], said["flow_and_list_join"]) == ("none", "none")
    assert said["misspelt setting"].startswith("ImproperlyConfigured: SYNERGON has no 'concurency'; it takes url, name")
    assert said["no dict"].startswith("ImproperlyConfigured: SYNERGON must be a dict")
    assert said["good setting"] == "none"

    # The URL of a database of Django.
    assert said["sqlite"] == "sqlite:////srv/my%20shop%231.db"
    assert "':memory:', which is no plain file" in said["sqlite in memory"]
    assert "(django.db.backends.mysql): it needs PostgreSQL or SQLite" in said["mysql"]
    assert said["postgresql"] == "postgresql://a%40b:p%2Fw%3F@db:5433/shop"
    assert said["local"] == "postgresql:///shop"
    assert said["socket"] == "postgresql://ada@/shop?host=%2Frun%2Fpg&port=5433"
    assert said["hosts"] == "postgresql://db1:5432,[::1]:5433/shop"
    assert said["options"] == "postgresql://db/shop?sslmode=require"
