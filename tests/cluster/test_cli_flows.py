"""`synergon flows`: tables for people, JSON for programs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, quickly, until

from synergon import State

APP = """
from synergon import Engine

engine = Engine("sqlite:///app.db")


@engine.task
async def rows(number: int) -> list[int]:
    return list(range(number))


@engine.task
async def render_a_page_of_the_report_of_the_whole_company(row: int) -> str:
    if row == 1:
        raise ValueError("row 1")
    return str(row)


@engine.task
async def publish(pages: list[str], number: int = 0) -> int:
    return len(pages)


@engine.task
async def mail(number: int) -> None: ...


def new_flow(number):
    flow = engine.flow("import of all rows of the whole company, with a very long name")
    found = flow.add(rows.call(number))
    first = flow.add(rows.call(1))
    pages = flow.map(render_a_page_of_the_report_of_the_whole_company, over=found)
    published = flow.add(publish.call(pages.results), after=[first], if_dependency_fails="run")
    flow.add(mail.call(published.result))
    return flow


def enqueue():
    with engine:
        run = new_flow(14).enqueue_sync()
        print(run.id)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with an app that makes flows, and its database."""
    shell = Shell.in_folder(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    assert quickly(shell, "migrate", "--app", "app").code == 0
    return shell


def enqueue_flow(shell: Shell) -> int:
    """Enqueue three steps, as another program would."""
    with shell.engine as engine:
        flow = engine.flow("nightly")
        first = flow.add(engine.call("rows", number=2))
        second = flow.add(engine.call("rows", number=3), after=[first])
        flow.add(engine.call("mail", number=1), after=[first, second])
        return flow.enqueue_sync().id


def enqueue_from_app(shell: Shell) -> int:
    """Enqueue the flow of the app, whose map needs the functions."""
    found = subprocess.run(
        [sys.executable, "-c", "import app; app.enqueue()"],
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout)


def test_flows_are_listed_newest_first_within_80_columns_and_as_json(shell: Shell) -> None:
    assert quickly(shell, "flows", "list", "--app", "app").out == "there are no flows\n"
    assert quickly(shell, "flows", "list", "--app", "app", "--json").out == ""
    first, second, third = [enqueue_flow(shell) for _ in range(3)]
    with shell.engine as engine:
        engine.flows.get_sync(second).cancel_sync()
    found = quickly(shell, "flows", "list", "--app", "app")
    lines = found.out.splitlines()
    assert found.code == 0
    assert lines[0].split() == ["id", "flow", "state", "tasks", "created", "took"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [str(third), "nightly", "open"],
        [str(second), "nightly", "cancelled"],
        [str(first), "nightly", "open"],
    ]
    assert "2 waiting, 1 ready" in " ".join(lines[1].split())
    assert "3 cancelled" in lines[2]
    assert max(map(len, lines)) <= 80
    documents = quickly(shell, "flows", "list", "--app", "app", "--json").lines
    assert [(document["id"], document["state"]) for document in documents] == [
        (third, None),
        (second, "cancelled"),
        (first, None),
    ]
    assert documents[0]["counts"] == {"ready": 1, "waiting": 2}


def test_a_list_is_narrowed_and_continued(shell: Shell) -> None:
    first, second = [enqueue_flow(shell) for _ in range(2)]
    with shell.engine as engine:
        engine.flows.get_sync(second).cancel_sync()

    def listed(*options: str) -> list[int]:
        return [line["id"] for line in quickly(shell, "flows", "list", "--app", "app", "--json", *options).lines]

    assert listed("--state", "open") == [first]
    assert listed("--state", "cancelled") == [second]
    assert listed("--name", "nightly") == [second, first]
    assert listed("--name", "daily") == []
    assert listed("--limit", "1") == [second]
    assert listed("--limit", "1", "--before", str(second)) == [first]
    assert f"more: --before {second}" in quickly(shell, "flows", "list", "--app", "app", "--limit", "1").out
    wrong = quickly(shell, "flows", "list", "--app", "app", "--state", "ready")
    assert (wrong.code != 0, "a flow's state is one of" in wrong.err) == (True, True)


def test_a_flow_is_shown_as_a_tree_with_states_and_times(shell: Shell) -> None:
    flow_id = enqueue_flow(shell)
    found = quickly(shell, "flows", "show", str(flow_id), "--app", "app")
    assert found.code == 0
    heading, columns, *lines = found.out.splitlines()
    assert heading.startswith(f"flow {flow_id} nightly: open, 2 waiting, 1 ready, ")
    assert columns.split() == ["task", "state", "waited", "ran", "also", "after"]
    with shell.engine as engine:
        ids = [step.task.id for step in engine.flows.get_sync(flow_id).steps_sync()]
    assert lines[0].split()[:3] == [str(ids[0]), "rows", "ready"]
    assert lines[1].split()[:4] == ["└", str(ids[1]), "rows", "waiting"]
    assert lines[2].startswith(f"  └ {ids[2]} mail")
    assert lines[2].split()[-1] == str(ids[0])
    assert max(map(len, found.out.splitlines())) <= 80


def test_a_flow_that_has_ended_is_shown_with_the_items_of_its_map(shell: Shell) -> None:
    flow_id = enqueue_from_app(shell)
    with shell.start("worker", "app") as worker:
        with shell.engine as engine:
            run = engine.flows.get_sync(flow_id)
            until(lambda: run.status_sync().state is State.FAILED)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    found = quickly(shell, "flows", "show", str(flow_id), "--app", "app")
    lines = found.out.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the terminal wraps the heading
    items = [line for line in lines if " render_a_page" in line]
    assert len(items) == 11  # the map, and ten of its items
    assert sum("failed" in line for line in items) == 1
    assert sum("succeeded" in line for line in items) == 10
    assert any("4 more tasks" in line for line in lines)
    document = quickly(shell, "flows", "show", str(flow_id), "--app", "app", "--json").document
    assert (document["id"], document["state"]) == (flow_id, "failed")
    assert document["counts"] == {"succeeded": 18, "failed": 1}
    assert len(document["steps"]) == 19
    (published,) = [step for step in document["steps"] if step["task"]["kind"] == "publish"]
    assert [need["item"] for need in published["needs"] if need["item"] is not None] == list(range(14))


def test_a_flow_that_does_not_exist_is_an_error(shell: Shell) -> None:
    for arguments in (["show", "17"], ["show", "17", "--json"]):
        found = quickly(shell, "flows", *arguments, "--app", "app")
        assert found.code != 0
        assert "there is no flow 17: it never existed, or it was pruned" in found.err
