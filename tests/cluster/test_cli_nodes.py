"""`synergon nodes`: the table for people, JSON for programs, on the stores that processes share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cli_support import Shell, quickly
from tests.cluster.cli_support import until as until_so
from tests.postgres_server import store_url
from tests.support import until

from synergon import Engine, State


@pytest.fixture(params=("sqlite", "postgres"))
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    """A shell whose app uses this database."""
    shell = Shell.in_folder(tmp_path)
    url = f"sqlite:///{tmp_path}/app.db" if request.param == "sqlite" else store_url()
    app = shell.folder / "app.py"
    app.write_text(app.read_text().replace('Engine("sqlite:///app.db")', f"Engine({url!r})"))
    assert quickly(shell, "migrate", "--url", url).code == 0
    shell.environment["TEST_URL"] = url
    return shell


def nodes(shell: Shell, *options: str) -> list[Any]:
    finished = shell.run("nodes", "--app", "app", "--json", *options)
    assert (finished.code, finished.err) == (0, "")
    return finished.lines


def nodes_here(shell: Shell) -> list[Any]:
    """The same without a process of its own."""
    return quickly(shell, "nodes", "--app", "app", "--json").lines


def test_an_empty_list_of_nodes_exits_with_code_0(shell: Shell) -> None:
    shown = shell.run("nodes", "--app", "app")
    assert (shown.code, shown.out) == (0, "there are no nodes; `synergon worker` starts one\n")
    assert nodes(shell) == []


def test_a_node_is_listed_with_its_running_tasks_and_after_its_death(shell: Shell) -> None:
    with shell.start("worker", "app", "--name", "kim", "-c", "3", "--threads", "2", "-q", "default=2") as worker:
        worker.until_says(r"node \w+ \(kim\) runs")
        with Engine(shell.environment["TEST_URL"]) as producer:
            producer.enqueue_sync([producer.call("hold")])
        worker.until_says("hold has begun")
        (node,) = nodes(shell)
        assert (node["name"], node["pid"]) == ("kim", worker.process.pid)
        assert (node["is_alive"], node["runs_tasks"]) == (True, True)
        assert (node["concurrency"], node["running"], node["free"]) == (3, 1, 2)
        assert (node["threads"], node["resources"]["threads"]) == (2, 2)
        assert (node["kinds"], node["queues"]) == (["greet", "hold", "send"], ["default"])
        assert node["address"].startswith("http://")
        assert 0 < node["lease_remaining_seconds"] <= 30
        shown = shell.run("nodes", "--app", "app", COLUMNS="200")
        heading, row = shown.out.splitlines()
        assert " ".join(heading.split()) == "name running threads lease host pid kinds queues id address version"
        assert node["resources"]["queues"] == {"default": 2}
        for word in (
            "kim",
            "alive",
            "default=2",
            "1/3",
            "/2",
            str(worker.process.pid),
            "greet, hold, send",
            node["id"],
            node["address"],
        ):
            assert word in row
        narrow = shell.run("nodes", "--app", "app").out
        assert max(len(line) for line in narrow.splitlines()) <= 80
        assert " ".join(narrow.splitlines()[0].split()) == "name running threads lease host pid kinds queues"
        assert "alive" in narrow
        worker.process.kill()
        worker.ended()
    (dead,) = nodes(shell)
    assert (dead["id"], dead["is_alive"], dead["running"], dead["free"]) == (node["id"], False, 1, 0)
    assert "dead" in shell.run("nodes", "--app", "app").out
    refused = quickly(shell, "nodes", "drain", "kim", "--app", "app")
    assert (refused.code, refused.out) == (2, "")
    assert f"node '{node['id']}' (kim) is dead: its process {node['pid']} is gone" in refused.err


def test_a_draining_worker_is_listed_as_such_and_exits_with_code_0(tmp_path: Path) -> None:
    shell = Shell.in_folder(tmp_path)
    shell.enqueue("hold")
    with shell.start("worker", "app", "--name", "kim", "--grace", "0", "--sweep", "3600") as worker:
        worker.until_says("hold has begun")
        assert quickly(shell, "nodes", "cordon", "kim", "--app", "app").code == 0
        (node,) = nodes_here(shell)
        assert (node["is_cordoned"], node["departure"], node["free"], node["running"]) == (True, None, 0, 1)
        assert " cordoned " in quickly(shell, "nodes", "--app", "app").out
        told = quickly(shell, "nodes", "drain", "kim", "--app", "app")
        assert told.out == f"requested: drain of node {node['id']}; `synergon audit` shows the outcome\n"
        worker.until_says("operator action: drain")
        until_so(lambda: nodes_here(shell)[0]["departure"] == "drain")
        (node,) = nodes_here(shell)
        assert (node["is_cordoned"], node["running_by_kind"]) == (True, {"hold": 1})
        assert " draining " in quickly(shell, "nodes", "--app", "app").out
        (shell.folder / "go").touch()
        assert worker.ended() == 0
    assert shell.counts() == {State.SUCCEEDED: 1}
    assert nodes_here(shell) == []


async def test_an_engine_that_only_waits_is_listed_with_all_only(shell: Shell) -> None:
    async with Engine(shell.environment["TEST_URL"], name="web") as web:
        (handle,) = await web.enqueue([web.call("greet", name="Ada")])
        waiting = asyncio.create_task(handle.result())

        async def is_reachable() -> bool:
            return bool(await web._store.nodes())

        await until(is_reachable)
        assert await asyncio.to_thread(nodes, shell) == []
        (line,) = await asyncio.to_thread(nodes, shell, "--all")
        assert (line["name"], line["runs_tasks"], line["concurrency"], line["free"]) == ("web", False, 0, 0)
        shown = await asyncio.to_thread(shell.run, "nodes", "--all", "--app", "app")
        assert "only waits" in shown.out
        waiting.cancel()


def test_a_missing_database_exits_with_code_3_and_is_not_created(tmp_path: Path) -> None:
    shell = Shell.in_folder(tmp_path)
    finished = shell.run("nodes", "--url", "sqlite:///missing.db")
    assert (finished.code, finished.out) == (3, "")
    assert "there is no database" in finished.err
    assert not (tmp_path / "missing.db").exists()
