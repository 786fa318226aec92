"""`synergon status`, the ages in `queues list`, and `prune --set`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell.in_folder(tmp_path)
    shell.enqueue("greet", name="Ada")
    return shell


def test_ready_tasks_without_a_worker_are_a_problem(shell: Shell) -> None:
    found = shell.run("status", "--app", "app")
    assert found.code == 1
    assert "0 live workers" in found.out
    assert "(greet)" in found.out
    assert "problem  tasks are ready, and no worker runs" in found.out
    assert "none in the last hour" in found.out


def test_failures_of_the_last_hour_are_counted_and_are_no_problem(shell: Shell) -> None:
    shell.enqueue("send", to="a@b.c")
    shell.run("worker", "app", "--drain")
    found = shell.run("status", "--app", "app")
    assert found.code == 0
    assert "failed   1 in the last hour: 1 send" in found.out


def test_programs_get_plain_keys_with_units(shell: Shell) -> None:
    found = shell.run("status", "--app", "app", "--json")
    document = found.document
    assert found.code == 1
    assert (document["ready"], document["running"], document["slots"], document["workers_alive"]) == (1, 0, 0, 0)
    assert document["oldest_ready_seconds"] >= 0
    assert (document["failed_last_hour"], document["overdue"]) == (0, 0)
    assert document["problems"] == ["tasks are ready, and no worker runs"]
    (queue,) = document["queues"]
    assert [kind["kind"] for kind in queue["kinds"]] == ["greet"]


def test_the_list_of_queues_has_the_age_of_the_oldest_ready_task(shell: Shell) -> None:
    assert "oldest ready" in shell.run("queues", "--app", "app").out
    assert shell.run("queues", "--app", "app", "--json").document["oldest_ready_seconds"] >= 0


def test_the_retention_of_all_workers_is_set_by_an_operator(shell: Shell) -> None:
    assert shell.run("prune", "--set", "--app", "app").err.startswith("error: --set needs an age")
    done = shell.run("prune", "--set", "--failed", "90d", "--cancelled", "none", "--app", "app")
    assert done.out == "all workers keep: succeeded 7 d, failed 90 d, cancelled for ever, statistics 400 d\n"
    shown = shell.run("prune", "--set", "--succeeded", "1h", "--app", "app", "--json").document
    assert shown == {
        "succeeded_seconds": 3600.0,
        "failed_seconds": 90 * 86400.0,
        "cancelled_seconds": None,
        "statistics_seconds": 400 * 86400.0,
    }
    assert shell.run("prune", "--statistics", "9d", "--app", "app").err.startswith("error: --statistics needs --set")
    assert "set_retention" in shell.run("audit", "--app", "app").out
    assert "60 min (succeeded), 90 d (failed)" in shell.run("doctor", "--app", "app").out


def test_old_tasks_are_deleted_by_their_age(shell: Shell) -> None:
    shell.run("worker", "app", "--drain")
    assert shell.run("tasks", "delete", "--all", "--before", "1h", "--app", "app").out.startswith("0 tasks match")
    done = shell.run("tasks", "delete", "--all", "--before", "0s", "--app", "app")
    assert done.out == "1 task matches\ndeleted: 1 task\n"
