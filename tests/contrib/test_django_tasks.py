"""The backend for `django.tasks`, in a real Django project."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contrib.django_support import Project, project_on, remove

from synergon import State

pytest.importorskip("django.tasks", reason="django.tasks needs Django 6, and that needs Python 3.12")


@pytest.fixture(params=("sqlite", "postgres"))
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """The project on each database in turn."""
    made = project_on(request.param, tmp_path)
    yield made
    remove(made)


def test_tasks_of_django_are_stored_run_and_read(project: Project) -> None:
    ids = project.run_json("django_tasks.py", "enqueue")
    project.manage("synergon_worker", "--drain", "--concurrency=1")
    said = project.run_json("django_tasks.py", "read", json.dumps(ids))

    results = said["results"]
    joined = results["joined"]
    assert (joined["task"], joined["status"], joined["is_finished"]) == ("shop.background.ship", "SUCCESSFUL", True)
    assert (joined["kwargs"], joined["attempts"], joined["times"]) == ({}, 1, [True, True, True])
    assert joined["refreshed"] == joined["value"]
    assert (results["async"]["kwargs"], results["async"]["value"]) == ({"state": "at sea"}, "at sea")
    assert said["order"] == "at sea", "the tasks ran in order"
    context = results["context"]
    assert (context["value"], context["attempts"], context["queue"]) == ([2, 0], 2, "heavy")
    assert context["errors"] == ["builtins.RuntimeError"]
    assert (results["failed"]["status"], results["failed"]["args"]) == ("FAILED", ["why"])
    assert (results["failed"]["errors"], results["failed"]["classes"]) == (["shop.background.SoldOut"], ["SoldOut"])
    assert results["first"]["priority"] == 100
    assert results["first"]["value"] == ["first"], "the highest priority goes first"
    signals = ["ship RUNNING", "ship SUCCESSFUL", "ship_async RUNNING", "ship_async SUCCESSFUL"]
    assert results["last"]["value"] == ["first", *signals, "fail RUNNING", "fail FAILED", "last"]
    for name in ("later", "cancelled"):
        assert (results[name]["status"], results[name]["classes"]) == ("FAILED", ["TaskCancelled"])

    mistakes = said["mistakes"]
    assert mistakes["lost"] == f"TaskResultDoesNotExist: {ids['lost']}", "its transaction was rolled back"
    assert mistakes["foreign"] == f"TaskResultDoesNotExist: {ids['foreign']}"
    assert mistakes["no id"] == "TaskResultDoesNotExist: shop.tasks.ship"
    assert mistakes["mismatch"].startswith("TaskResultMismatch")
    assert mistakes["queue"] == "InvalidTask: Queue 'nowhere' is not valid for backend."
    assert mistakes["backend"].startswith("InvalidTask: shop.background.note is declared with the backend 'default'")
    assert mistakes["not json"].startswith("TypeError")
    with project.engine as engine:
        (path,) = engine.tasks_sync(kind="os.getcwd")
        assert path.state is State.READY, "a path out of a row is not imported"
        (late,) = engine.tasks_sync(kind="shop.late.late")
        assert (late.state, str(late.id)) == (State.READY, results["of a module"]["value"])
