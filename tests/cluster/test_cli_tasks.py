"""Looking at tasks and moving them: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, quickly, until

from synergon import State

GREETED, FAILED, LATER, CANCELLED = 1, 2, 3, 4


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose database holds one task of each fate."""
    folder = tmp_path_factory.mktemp("lived_in")
    shell = Shell.in_folder(folder)
    shell.enqueue("greet", name="Ada")
    with shell.engine as engine:
        engine.enqueue_sync(
            [
                engine.call("send", to="a@b.c").with_options(
                    queue="mail", retry=2, tags=["onboarding"], key="welcome-42", meta={"by": "me"}
                ),
                engine.call("greet", name="Eve").with_options(delay=3600, title="Hi {name}"),
            ]
        )
    shell.enqueue("hold")
    assert shell.run("tasks", "cancel", str(CANCELLED), "--why", "not needed", "--app", "app").code == 0
    with shell.start("worker", "app") as worker:
        worker.until_says(r"failed for good")
        worker.process.terminate()
        assert worker.ended() == 0
    return folder


@pytest.fixture
def shell(lived_in: Path, tmp_path: Path) -> Shell:
    shutil.copytree(lived_in, tmp_path, dirs_exist_ok=True)
    return Shell.in_folder(tmp_path)


def test_the_list_fits_80_columns_and_has_no_colours_in_a_pipe(shell: Shell) -> None:
    shown = shell.run("tasks", "list", "--app", "app")
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[0] == ["id", "state", "kind", "title", "queue", "tries", "when"]
    assert [row[:4] for row in rows[1:]] == [
        ["4", "cancelled", "hold", "default"],
        ["3", "scheduled", "greet", "Hi"],
        ["2", "failed", "send", "mail"],
        ["1", "succeeded", "greet", "default"],
    ]
    assert "in 59 min" in shown.out or "in 60 min" in shown.out
    assert "ValueError: [bold]" in shown.out
    assert "\x1b" not in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ("--state failed --state succeeded", [2, 1]),
        ("--kind greet", [3, 1]),
        ("--kind greet --kind hold", [4, 3, 1]),
        ("--meta by=me", [2]),
        ("--meta by=42", []),
        ("--search a@b", [2]),
        ("--search bold", [2]),
        ("--since 1h --ascending", [1, 2, 3, 4]),
        ("--until 2020-01-01", []),
        ("--sort due", [3]),
        ("--sort end --finished-since 1h --state failed", [2]),
        ("--started-since 1h --kind greet", [1]),
        ("--queue mail", [2]),
        ("--tag onboarding --key welcome-42", [2]),
        ("--title hi", [3]),
        ("--limit 2 --after 4", [3, 2]),
    ],
)
def test_the_list_for_programs_is_one_record_per_line(shell: Shell, filters: str, ids: list[int]) -> None:
    finished = shell.run("tasks", "list", "--json", *filters.split(), SYNERGON_APP="app")
    assert [task["id"] for task in finished.lines] == ids
    assert (finished.code, finished.err) == (0, "")


def test_a_task_that_cannot_be_read_is_shown_with_the_names_of_its_columns(shell: Shell, tmp_path: Path) -> None:
    with closing(sqlite3.connect(next(tmp_path.glob("*.db")), isolation_level=None)) as connection:
        connection.execute("UPDATE synergon_history SET meta = x'7b' WHERE id = ?", (FAILED,))
    listed = shell.run("tasks", "list", "--app", "app")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["id", "4", "3", "2", "1"]
    assert "unreadable: meta" in listed.out
    shown = quickly(shell, "tasks", "show", str(FAILED), "--json", "--app", "app")
    assert (shown.document["unreadable"], shown.document["meta"]) == (["meta"], {})
    diagnosed = quickly(shell, "doctor", "--app", "app")
    assert f"the column meta of task {FAILED} cannot be read" in diagnosed.out
    assert (listed.code, shown.code, diagnosed.code) == (0, 0, 1)
    assert listed.err.count(f"the column meta of task {FAILED} cannot be read") == 1


def test_a_list_without_titles_has_no_column_for_them(shell: Shell) -> None:
    shown = shell.run("tasks", "list", "--kind", "send", "--app", "app").out
    assert shown.split("\n")[0].split() == ["id", "state", "kind", "queue", "tries", "when"]


def test_an_empty_list_and_a_list_with_more_pages_say_so(shell: Shell) -> None:
    assert shell.run("tasks", "list", "--kind", "nothing", "--app", "app").out == "no tasks match\n"
    assert "more tasks: --after 3" in shell.run("tasks", "list", "--limit", "2", "--app", "app").out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--since soon", "--since takes a time like 2026-12-24T18:00+01:00, or 2h for two hours ago, got 'soon'"),
        ("--finished-until x", "--finished-until takes a time"),
        ("--meta customer", "--meta takes NAME=VALUE, like customer=42, got 'customer'"),
        ("--meta customer=[1]", "meta is compared with texts, numbers, True, False and None"),
        ("--sort title", "sort must be one of 'id', 'due', 'end', got 'title'"),
        ("--after x", "after must be the `next` of a page"),
    ],
)
def test_a_filter_that_makes_no_sense_is_an_error(shell: Shell, options: str, words: str) -> None:
    finished = shell.run("tasks", "list", *options.split(), "--app", "app")
    assert (finished.code, words in finished.err) == (2, True), finished.err


def test_show_prints_all_details(shell: Shell) -> None:
    shown = shell.run("tasks", "show", str(FAILED), "--url", "sqlite:///app.db").out
    assert shown.startswith("task 2  send  failed (exhausted)\n")
    for fact in ("mail", "2 of 2", "welcome-42", "onboarding", '{"to": "a@b.c"}', '{"by": "me"}', " ago)"):
        assert fact in shown
    assert shown.count("Traceback (most recent call last):") == 2
    assert "attempt 1: ValueError" in shown
    table = shown[shown.index("claim  started") :].splitlines()[:3]
    assert [line.split()[0] for line in table] == ["claim", "1", "2"]
    assert all("error: ValueError" in line for line in table[1:])
    assert all(len(line) <= 80 for line in table)
    assert "ValueError: [bold]a@b.c[/bold] is nobody" in shown
    assert '"hello Ada"' in shell.run("tasks", "show", str(GREETED), "--app", "app").out
    shown = shell.run("tasks", "show", str(LATER), "--app", "app").out
    assert re.search(r"^title +Hi Eve +$", shown, re.MULTILINE)


def test_show_for_programs_is_one_record(shell: Shell) -> None:
    task = shell.run("tasks", "show", str(FAILED), "--json", "--app", "app").document
    assert (task["id"], task["state"], task["reason"], task["arguments"]) == (2, "failed", "exhausted", {"to": "a@b.c"})
    assert [error["type"] for error in task["errors"]] == ["ValueError", "ValueError"]
    assert [(entry["claim_no"], entry["outcome"]) for entry in task["attempts_made"]] == [(1, "error"), (2, "error")]
    greeted = shell.run("tasks", "show", str(GREETED), "--json", "--app", "app").document
    assert [entry["outcome"] for entry in greeted["attempts_made"]] == ["succeeded"]


def test_an_unknown_task_exits_with_code_1(shell: Shell) -> None:
    finished = shell.run("tasks", "show", "99", "--json", "--app", "app")
    assert (finished.code, finished.out) == (1, "")
    assert finished.err == ("error: there is no task 99: it never existed, was deleted, or its history was pruned\n")


def test_explain_describes_ended_and_waiting_tasks(shell: Shell) -> None:
    ended = shell.run("tasks", "explain", str(FAILED), "--app", "app")
    assert ended.code == 0
    assert re.fullmatch(r"task 2 \(send\): failed at .+ after 2 attempts \(exhausted\): ValueError: .+\n", ended.out)
    later = shell.run("tasks", "explain", str(LATER), "--json", "--app", "app").document
    assert later["sentence"].startswith("scheduled: its time comes in ")
    assert [cause["why"] for cause in later["causes"]] == ["delayed", "unknown_kind"], "no worker is there"


def test_explain_lists_the_reasons_of_each_node(shell: Shell) -> None:
    with shell.start("worker", "app", "-c", "1", "--name", "node-a", SYNERGON_LEASE="2") as worker:
        shell.enqueue("hold")
        worker.until_says("hold has begun")
        (waits,) = shell.enqueue("greet", name="Bob")
        until(lambda: "(1 of 1 slots in use)" in explained(shell, waits))
        shown = explained(shell, waits).splitlines()
        why = r"1 node runs `greet`: node-a is full \(1 of 1 slots in use\)"
        assert re.fullmatch(rf"task {waits} \(greet\): ready, due for \d+ s; {why}", shown[0])
        assert shown[2].split() == ["node", "can", "start", "reason", "status"]
        assert re.fullmatch(r"node-a  no +is full \(1 of 1 slots in use\)  \d+ s ago", shown[3].rstrip())
        (shell.folder / "go").touch()
        until(lambda: "succeeded at" in explained(shell, waits))


def explained(shell: Shell, task_id: int) -> str:
    """What is printed without starting a process for it."""
    return quickly(shell, "tasks", "explain", str(task_id), "--app", "app").out


def test_explain_of_an_unknown_task_is_an_error(shell: Shell) -> None:
    finished = shell.run("tasks", "explain", "99", "--app", "app")
    assert (finished.code, finished.out) == (1, "")
    assert "error: there is no task 99" in finished.err


def test_each_id_gets_a_result_and_one_failure_exits_with_code_1(shell: Shell) -> None:
    finished = shell.run("tasks", "retry", "1", "2", "3", "99", "--app", "app")
    assert finished.code == 1
    assert finished.out == "task 1 was retried\ntask 2 was retried\n"
    assert "error: task 3 is scheduled and cannot be retried; only an ended task can be\n" in finished.err
    assert "error: there is no task 99" in finished.err
    assert shell.counts() == {State.READY: 2, State.SCHEDULED: 1, State.CANCELLED: 1}


def test_tasks_can_be_cancelled_and_deleted(shell: Shell) -> None:
    assert shell.run("tasks", "cancel", str(LATER), "--app", "app").out == "task 3 was cancelled\n"
    again = shell.run("tasks", "cancel", str(LATER), "--app", "app")
    assert (again.code, again.err) == (1, "error: task 3 is cancelled and cannot be cancelled; it has ended\n")
    assert shell.run("tasks", "delete", "1", "3", "--app", "app").code == 0
    assert shell.counts() == {State.FAILED: 1, State.CANCELLED: 1}


def test_all_matching_tasks_are_processed_over_many_pages(shell: Shell) -> None:
    shell.enqueue("greet", number=1200, name="Bob")
    shell.enqueue("hold")
    cancelled = shell.run("tasks", "cancel", "--all", "--kind", "greet", "--app", "app")
    assert (cancelled.code, cancelled.out) == (0, "1201 tasks match\ncancelled: 1201 tasks\n")
    retried = shell.run("tasks", "retry", "--all", "--yes", "--app", "app")
    assert retried.out == "1 task matches\nretried: 1 task\n", "without --state it is the failed ones"
    retried = shell.run("tasks", "retry", "--all", "--state", "cancelled", "--kind", "greet", "--app", "app")
    assert (retried.code, retried.out) == (0, "1201 tasks match\nretried: 1201 tasks\n")
    assert shell.counts() == {State.READY: 1203, State.SUCCEEDED: 1, State.CANCELLED: 1}


def test_a_live_task_with_the_key_blocks_a_retry(shell: Shell) -> None:
    with shell.engine as engine:
        (holder,) = engine.enqueue_sync([engine.call("send", to="x").with_options(key="welcome-42")])
    one = shell.run("tasks", "retry", str(FAILED), "--app", "app")
    assert (one.code, one.err) == (1, f"error: task 2 cannot be retried: task {holder.id} is live and holds its key\n")
    every = shell.run("tasks", "retry", "--all", "--kind", "send", "--app", "app")
    assert (every.code, every.out) == (1, "1 task matches\nretried: 0 tasks\n")
    assert every.err == "error: 1 task cannot be retried: live tasks hold their keys\n"


def test_a_task_that_another_one_needs_is_not_deleted(shell: Shell) -> None:
    with shell.engine as engine:
        (after,) = engine.enqueue_sync([engine.call("send", to="x").with_options(after=[1, LATER])])
    one = shell.run("tasks", "delete", "1", "--app", "app")
    reason = f"task {after.id} depends on it and may need its result; cancel that one, or wait for its end"
    assert (one.code, one.err) == (1, f"error: task 1 cannot be deleted: {reason}\n")
    every = shell.run("tasks", "delete", "--all", "--state", "succeeded", "--kind", "greet", "--app", "app")
    assert (every.code, every.out) == (
        0,
        "1 task matches\ndeleted: 0 tasks\nkept 1 task that live tasks depend on\n",
    )


def test_queues_are_listed_paused_and_resumed(shell: Shell) -> None:
    paused = shell.run("queues", "pause", "mail", "mail2", "--app", "app")
    assert paused.out == "queue mail is paused\nqueue mail2 is paused; it has no tasks yet\n"
    assert shell.run("queues", "pause", "mail", "--app", "app").out == "queue mail was already paused\n"

    listed = {queue["name"]: queue for queue in shell.run("queues", "list", "--json", "--app", "app").lines}
    assert listed["default"]["counts"] == {"scheduled": 1, "succeeded": 1, "cancelled": 1}
    assert listed["default"]["paused_at"] is None
    assert listed["mail"]["paused_at"] is not None
    shown = shell.run("queues", "list", "--app", "app").out
    assert (
        " ".join(shown.splitlines()[0].split())
        == "queue scheduled ready running succeeded failed cancelled oldest ready"
    )
    assert "paused" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80

    resumed = shell.run("queues", "resume", "mail", "mial", "--app", "app")
    assert (resumed.code, resumed.out) == (1, "queue mail is resumed\n")
    assert resumed.err == "error: there is no queue 'mial'; did you mean 'mail'?\n"


def test_prune_deletes_ended_tasks_by_age(shell: Shell) -> None:
    assert shell.run("prune", "--app", "app").out == "0 tasks deleted\n"
    assert shell.run("prune", "--failed", "0", "--app", "app").out == "1 task deleted\n"
    assert shell.run("prune", "--succeeded", "0", "--cancelled", "0", "--app", "app", "--json").document == {
        "deleted": 2
    }
    assert [line["id"] for line in shell.run("tasks", "list", "--app", "app", "--json").lines] == [LATER]
    wrong = shell.run("prune", "--failed", "long", "--app", "app")
    assert wrong.code == 2
    assert "failed must be seconds or a duration" in wrong.err


def test_all_needs_a_filter_or_yes_and_can_be_tried_first(shell: Shell) -> None:
    for verb in (["cancel"], ["retry"], ["delete"], ["priority", "--to", "1"], ["reschedule", "--delay", "0"]):
        refused = shell.run("tasks", *verb, "--all", "--app", "app")
        assert refused.code == 2
        assert "--all needs a filter (--kind, --state, ...), or --yes for all tasks" in refused.err
    tried = shell.run("tasks", "delete", "--all", "--dry-run", "--app", "app")
    assert tried.out == "3 tasks match; nothing was changed\n"
    tried = shell.run("tasks", "delete", "--all", "--tag", "onboarding", "--dry-run", "--json", "--app", "app")
    assert tried.document == {"matching": 1}
    assert sum(shell.counts().values()) == 4
    assert shell.run("audit", "--json", "--app", "app").lines[0]["verb"] == "cancel"


def test_tasks_are_rescheduled_and_reprioritized_by_filter_and_by_id(shell: Shell) -> None:
    moved = shell.run("tasks", "reschedule", "--all", "--title", "hi", "--delay", "0", "--app", "app")
    assert (moved.code, moved.out) == (0, "1 task matches\nrescheduled: 1 task\n")
    assert shell.run("tasks", "priority", str(LATER), "--to", "7", "--app", "app").code == 0
    shown = shell.run("tasks", "show", str(LATER), "--json", "--app", "app").document
    assert (shown["state"], shown["priority"]) == ("ready", 7)
    assert "give the new priority: --to NUMBER" in shell.run("tasks", "priority", str(LATER), "--app", "app").err
    wrong = shell.run("tasks", "reschedule", str(LATER), "--run-at", "soon", "--app", "app")
    assert (wrong.code, "--run-at takes a time like" in wrong.err) == (2, True)


def test_retries_and_deletions_are_in_the_audit_one_by_one_or_as_one(shell: Shell) -> None:
    shell.run("tasks", "retry", "2", "3", "--app", "app")
    shell.run("tasks", "delete", "1", "--app", "app")
    shell.run("tasks", "cancel", "--all", "--kind", "greet", "--why", "enough", "--app", "app")
    entries = shell.run("audit", "--json", "--app", "app").lines[:4]
    assert [(entry["verb"], entry["subject"], entry["outcome"]) for entry in entries] == [
        ("cancel_all", "state=ready,running,scheduled,waiting kind=greet", "1 task cancelled"),
        ("delete", "1", "deleted"),
        ("retry", "3", "rejected: the task is scheduled"),
        ("retry", "2", "retried"),
    ]
    assert entries[0]["value"] == {"why": "enough"}
    shell.run("tasks", "retry", "--all", "--state", "cancelled", "--why", "mended", "--app", "app")
    shown = shell.run("audit", "--limit", "1", "--app", "app").out
    assert "retry_all" in shown
    assert "mended" in shown
