"""`synergon schedules`: tables for people, JSON for programs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, quickly

APP = """
from datetime import UTC, datetime

from synergon import Engine

engine = Engine("sqlite:///app.db")


@engine.cron("0 3 * * *", tz="Europe/Berlin", name="nightly-report-of-the-whole-company-with-a-long-name")
@engine.task
async def report(region: str = "eu") -> None: ...
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with an app that declares a schedule, its database, and a schedule that was made at run time."""
    shell = Shell.in_folder(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    assert quickly(shell, "migrate", "--app", "app").code == 0
    with shell.engine as engine:
        engine.schedules.create_sync("hourly", engine.call("report", region="us"), every="1h", jitter="5m")
        engine.schedules.create_sync("often", engine.call("nobody"), cron="*/5 * * * *", overlap="queue")
    return shell


def test_schedules_are_listed_within_80_columns_and_as_json(shell: Shell) -> None:
    with shell.start("worker", "app") as worker:
        worker.until_says("runs 1 kind,")
        found = shell.run("schedules", "list", "--app", "app")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    lines = found.out.splitlines()
    assert found.code == 0
    assert lines[0].split() == ["schedule", "when", "next"], "the names stay whole, and numbers give way"
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("hourly")
    assert "every 1 h" in lines[1]
    assert "nightly-report" in lines[2]
    assert "undeclared" not in found.out
    stopped = quickly(shell, "schedules", "list", "--app", "app")
    assert "undeclared" in stopped.out
    assert max(map(len, stopped.out.splitlines())) <= 80
    documents = quickly(shell, "schedules", "list", "--app", "app", "--json").lines
    assert [(document["name"], document["state"]) for document in documents] == [
        ("hourly", "active"),
        ("nightly-report-of-the-whole-company-with-a-long-name", "undeclared"),
        ("often", "active"),
    ]


def test_without_schedules_it_says_so(tmp_path: Path) -> None:
    shell = Shell.in_folder(tmp_path)
    assert quickly(shell, "migrate", "--app", "app").code == 0
    assert quickly(shell, "schedules", "list", "--app", "app").out == "there are no schedules\n"
    assert quickly(shell, "schedules", "list", "--app", "app", "--json").out == ""
    assert quickly(shell, "schedules", "next", "--app", "app").out == "no schedule fires\n"


def test_one_is_shown_with_its_explanation(shell: Shell) -> None:
    found = quickly(shell, "schedules", "show", "hourly", "--app", "app")
    assert found.code == 0
    assert found.out.startswith("next at ")
    for words in ("at run time", "every 1 h", "up to 5 min", '{"region":"us"}', "0 missed, 0 skipped"):
        assert words in found.out
    document = quickly(shell, "schedules", "show", "often", "--app", "app", "--json").document
    assert document["cron"] == "*/5 * * * *"
    assert "no live node knows the kind 'nobody'" in document["explanation"]


def test_pause_resume_and_delete_are_reported_and_audited(shell: Shell) -> None:
    def say(*arguments: str) -> str:
        return quickly(shell, "schedules", *arguments, "--app", "app").out

    assert say("pause", "hourly", "often") == "schedule hourly is paused\nschedule often is paused\n"
    assert say("pause", "hourly") == "schedule hourly was already paused\n"
    assert "paused" in say("list")
    assert "paused since" in say("show", "hourly")
    assert say("resume", "hourly") == "schedule hourly is resumed\n"
    assert say("resume", "hourly", "--json") == '{"name":"hourly","changed":false}\n'
    assert say("delete", "often") == "schedule often is deleted\n"
    audit = quickly(shell, "audit", "--app", "app", "--json").lines
    assert [(entry["verb"], entry["subject"]) for entry in audit[:2]] == [
        ("delete_schedule", "often"),
        ("resume_schedule", "hourly"),
    ]


def test_one_of_run_time_is_changed_and_that_is_audited(shell: Shell) -> None:
    changed = quickly(
        shell, "schedules", "update", "hourly", "--cron", "0 4 * * *", "--tz", "Asia/Tokyo", "--app", "app"
    )
    assert changed.code == 0
    assert changed.out.startswith("schedule hourly is changed: 0 4 * * * Asia/Tokyo; its next occurrence is in ")
    options = ("--every", "3h", "--overlap", "queue", "--ends-at", "2126-01-01T00:00+00:00")
    document = quickly(shell, "schedules", "update", "hourly", *options, "--app", "app", "--json").document
    assert (document["every"], document["cron"], document["overlap"], document["missed"]) == (
        "PT10800S",
        None,
        "queue",
        "one",
    )
    assert document["ends_at"] == "2126-01-01T00:00:00Z"
    (entry, *_) = quickly(shell, "audit", "--app", "app", "--json").lines
    assert (entry["verb"], entry["subject"], entry["outcome"]) == (
        "update_schedule",
        "hourly",
        "changed: tz, every, cron, overlap, ends_at",
    )
    for arguments, words in (
        (("hourly",), "nothing to change"),
        (("hourly", "--ends-at", "soon"), "--ends-at takes a time like 2026-12-24T18:00+01:00, got 'soon'"),
        (("hourly", "--every", "often"), 'every must be seconds or a duration like "500ms" or "10m", got \'often\''),
        (("hourl", "--every", "1h"), "did you mean 'hourly'?"),
    ):
        rejected = quickly(shell, "schedules", "update", *arguments, "--app", "app")
        assert rejected.code != 0
        assert words in " ".join(rejected.err.split())


def test_run_creates_one_more_task_and_says_why_not(shell: Shell) -> None:
    found = quickly(shell, "schedules", "run", "hourly", "--app", "app")
    assert (found.code, found.out) == (0, "schedule hourly has created task 1\n")
    again = quickly(shell, "schedules", "run", "hourly", "--app", "app")
    assert again.code == 1
    assert "schedule hourly has created no task: task 1 has not ended" in again.err
    assert quickly(shell, "schedules", "run", "often", "--app", "app", "--json").document["task_id"] is not None
    shown = quickly(shell, "tasks", "show", "1", "--app", "app").out
    assert "hourly, for 20" in shown


def test_the_next_occurrences_are_listed_in_order(shell: Shell) -> None:
    found = quickly(shell, "schedules", "next", "--number", "4", "--app", "app")
    assert found.code == 0
    assert len(found.out.splitlines()) == 5
    one = quickly(shell, "schedules", "next", "often", "--number", "3", "--app", "app", "--json").lines
    assert [line["name"] for line in one] == ["often"] * 3
    assert [line["at"] for line in one] == sorted(line["at"] for line in one)


@pytest.mark.parametrize("command", ["show", "pause", "resume", "delete", "run", "next"])
def test_a_misspelt_name_is_an_error_with_a_proposal_and_nothing_changes(shell: Shell, command: str) -> None:
    found = quickly(shell, "schedules", command, "hurly", "--app", "app")
    assert found.code == 1
    assert "there is no schedule 'hurly'; did you mean 'hourly'?" in found.err
