"""`synergon limits`, `servers`, `audit` and actions on nodes: tables for people, JSON for programs."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cli_support import Shell, quickly

APP = """
import time
from pathlib import Path

from synergon import Engine, Health, Rate, Server

engine = Engine("sqlite:///app.db")
engine.limit("license", 2)
gpu = engine.provider("gpu", servers={"http://gpu1": 2, "http://gpu2": 1})
bare = engine.provider("bare")
weak = engine.provider("weak", health=Health(failures=1, backoff=900, cap=900), timeout=7)


@engine.task(limits=["license"])
async def solve() -> None: ...


@engine.task(limit_by="{customer}", limit=1, rate=Rate(10, per="1m", burst=5))
async def bill(customer: str) -> None: ...


@gpu.task
def draw(server: Server) -> str:
    print("draw has begun", flush=True)
    deadline = time.monotonic() + 30
    while not Path("go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return server.address


@bare.task
async def wait_for_ever() -> None: ...


@weak.task
async def break_it() -> None:
    raise ConnectionError("refused")
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with an app that has limits and servers, and its database."""
    shell = Shell.in_folder(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    assert quickly(shell, "migrate", "--app", "app").code == 0
    return shell


def lines(shell: Shell, *command: str) -> list[Any]:
    finished = quickly(shell, *command, "--app", "app", "--json")
    assert (finished.code, finished.err) == (0, "")
    return finished.lines


def test_limits_are_listed_and_set(shell: Shell) -> None:
    found = {limit["name"]: limit for limit in lines(shell, "limits")}
    assert {name: limit["value"] for name, limit in found.items()} == {"license": 2, "key:bill": 1}
    assert found["key:bill"]["rate"] == {"per": 60_000_000, "starts": 10, "burst": 5, "by_units": True}
    assert lines(shell, "limits", "list") == list(found.values())

    changed = quickly(shell, "limits", "set", "license", "7", "--app", "app")
    assert (changed.code, changed.out) == (0, "limit license is 7 now; 0 in use\n")
    assert (
        quickly(shell, "limits", "set", "license", "0", "--app", "app").out == "limit license is closed now; 0 in use\n"
    )
    assert quickly(shell, "limits", "set", "license", "none", "--app", "app", "--json").document["value"] is None
    heading, *rows = quickly(shell, "limits", "--app", "app").out.splitlines()
    assert heading.split() == ["limit", "value", "in", "use", "waiting", "rate"]
    assert " ".join(rows[0].split()) == "key:bill 1 0 0 10 per minute, 5 at once"
    assert rows[1].split() == ["license", "none", "0", "0"]

    rated = quickly(shell, "limits", "set", "license", "--rate", "600/1m", "--burst", "20", "--app", "app")
    assert (rated.code, rated.out) == (0, "limit license is none, 600 per minute, 20 at once now; 0 in use\n")
    assert (
        quickly(shell, "limits", "set", "license", "--rate", "none", "--app", "app", "--json").document["rate"] is None
    )
    for wrong, words in (
        (["--rate", "fast"], "--rate takes a number and a time, like 600/1m, or none, got 'fast'"),
        (["--burst", "2"], "--burst belongs to --rate"),
        ([], "nothing to change for the limit 'license'; give a value or a rate"),
    ):
        rejected = quickly(shell, "limits", "set", "license", *wrong, "--app", "app")
        assert (rejected.code, words in " ".join(rejected.err.split())) == (2, True), rejected.err

    unknown = quickly(shell, "limits", "set", "licence", "1", "--app", "app")
    assert (unknown.code, unknown.out) == (2, "")
    assert unknown.err == "error: there is no limit 'licence'; declared are: key:bill, license\n"


def test_servers_are_listed_and_set(shell: Shell) -> None:
    found = lines(shell, "servers")
    assert [(server["provider"], server["address"], server["capacity"]) for server in found] == [
        ("gpu", "http://gpu1", 2),
        ("gpu", "http://gpu2", 1),
    ]
    changed = quickly(shell, "servers", "set", "gpu", "http://gpu2=0", "http://gpu3:8000/v1=none", "--app", "app")
    assert (changed.code, changed.out) == (0, "provider gpu has 2 servers now\n")
    heading, *rows = quickly(shell, "servers", "--app", "app").out.splitlines()
    assert heading.split() == ["provider", "address", "capacity", "in", "use", "failures"]
    assert [row.split() for row in rows] == [
        ["gpu", "http://gpu2", "closed", "0", "0"],
        ["gpu", "http://gpu3:8000/v1", "none", "0", "0"],
    ]
    unknown = quickly(shell, "servers", "set", "cpu", "a=1", "--app", "app")
    assert unknown.code == 2
    assert "there is no provider 'cpu'; no code has declared it on this store" in unknown.err


def test_one_server_is_added_closed_and_removed(shell: Shell) -> None:
    def change(*command: str) -> tuple[int, str, str]:
        finished = quickly(shell, "servers", *command, "--app", "app")
        return finished.code, finished.out, " ".join(finished.err.split())

    several = "error: say which provider gets the server: --provider NAME; known are: bare, gpu, weak"
    assert change("add", "http://gpu3=4") == (2, "", several)
    assert change("add", "http://gpu3=4", "--provider", "gpu") == (
        0,
        "server http://gpu3 of provider gpu has capacity 4 now\n",
        "",
    )
    assert change("add", "http://gpu3=many", "--provider", "gpu")[0] == 2
    assert change("close", "http://gpu1") == (
        0,
        "server http://gpu1 of provider gpu is closed; its tasks finish there\n",
        "",
    )
    assert change("remove", "http://gpu2") == (
        0,
        "server http://gpu2 is removed from provider gpu; its tasks finish there\n",
        "",
    )
    assert change("remove", "http://gpu2") == (
        2,
        "",
        "error: no provider has a server http://gpu2; known are: http://gpu1, http://gpu3",
    )
    assert change("close", "http://gpu9", "--provider", "gpu") == (
        2,
        "",
        "error: provider gpu has no server http://gpu9; it has http://gpu1, http://gpu3",
    )
    assert {server["address"]: server["capacity"] for server in lines(shell, "servers")} == {
        "http://gpu1": 0,
        "http://gpu3": 4,
    }
    assert [entry["outcome"] for entry in lines(shell, "audit")][1:] == [
        "provider gpu has 2 servers now: http://gpu2 removed, was 1",
        "provider gpu has 3 servers now: http://gpu1 2 → 0",
        "provider gpu has 3 servers now: http://gpu3 added with 4",
    ]


@pytest.mark.parametrize("value", ["-1", "-12", "many", "1.5"])
def test_an_invalid_limit_is_rejected_with_the_allowed_values(shell: Shell, value: str) -> None:
    refused = quickly(shell, "limits", "set", "license", value, "--app", "app")
    assert refused.code == 2
    assert "a whole number from 0 on" in refused.err
    assert "No such option" not in refused.err


def test_operator_actions_are_recorded_in_the_audit(shell: Shell) -> None:
    assert quickly(shell, "audit", "--app", "app").out == "there are no operator actions yet\n"
    (task_id,) = shell.enqueue("solve")
    assert quickly(shell, "queues", "pause", "mail", "--app", "app").code == 0
    assert quickly(shell, "tasks", "cancel", str(task_id), "--why", "enough", "--app", "app").code == 0
    assert quickly(shell, "limits", "set", "license", "5", "--app", "app").code == 0
    unknown = quickly(shell, "tasks", "cancel", "999", "--app", "app")
    assert unknown.code == 1
    assert unknown.err.startswith("error: there is no task 999")
    found = lines(shell, "audit")
    assert [(order["verb"], order["subject"], order["outcome"]) for order in found] == [
        ("cancel", "999", "rejected: no task of that id"),
        ("set_limit", "license", "limit license is 5 now, was 2"),
        ("cancel", str(task_id), "cancelled"),
        ("pause", "mail", "paused"),
    ]
    assert {order["who"] for order in found} == {f"{getpass.getuser()}@{socket.gethostname()}"}
    shown = shell.run("audit", "--app", "app", COLUMNS="160").out
    assert shown.splitlines()[0].split() == ["when", "who", "action", "subject", "outcome"]
    assert "limit license is 5 now" in shown
    assert len(lines(shell, "audit", "--limit", "1")) == 1


def test_a_running_task_is_cancelled_at_once_and_all_that_match_are_recorded_as_one(shell: Shell) -> None:
    with shell.start("worker", "app", "--sweep", "60") as worker:
        worker.until_says(r"node \w+ ")
        shell.enqueue("draw", number=5)
        worker.until_says("draw has begun", times=3)
        cancelled = quickly(shell, "tasks", "cancel", "--all", "--kind", "draw", "--app", "app")
        assert cancelled.out == "5 tasks match\ncancelled: 2 tasks\nrequested the cancel of 3 running tasks\n"
        (shell.folder / "go").touch()
        (entry,) = lines(shell, "audit")
        assert (entry["verb"], entry["outcome"]) == ("cancel_all", "5 tasks cancelled")


def test_a_node_is_cordoned_and_stopped_by_its_name(shell: Shell) -> None:
    with shell.start("worker", "app", "--name", "kim") as worker:
        worker.until_says(r"node \w+ \(kim\) runs")
        assert quickly(shell, "nodes", "cordon", "kim", "--app", "app").code == 0
        worker.until_says("operator action: cordon")
        (node,) = lines(shell, "nodes")
        assert quickly(shell, "nodes", "uncordon", node["id"], "--app", "app").code == 0
        worker.until_says("operator action: uncordon")
        unknown = quickly(shell, "nodes", "stop", "lee", "--app", "app")
        assert (unknown.code, unknown.err) == (
            2,
            f"error: there is no node 'lee'; registered are: {node['id']} (kim)\n",
        )
        told = quickly(shell, "nodes", "stop", "kim", "--app", "app")
        assert told.out == f"requested: stop of node {node['id']}; `synergon audit` shows the outcome\n"
        assert worker.ended() == 0
    assert [order["outcome"] for order in lines(shell, "audit")] == [
        "stops",
        "rejected: no node of that id",
        "takes work again",
        "cordoned",
    ]


def test_the_doctor_says_why_tasks_wait_for_limits_and_servers(shell: Shell) -> None:
    quickly(shell, "limits", "set", "license", "0", "--app", "app")
    shell.enqueue("solve", number=3)
    shell.enqueue("wait_for_ever")
    found = quickly(shell, "doctor", "--app", "app")
    assert found.code == 1
    assert "limit license is closed, and 3 tasks wait for it" in found.out
    assert "`synergon limits set license VALUE`" in found.out
    assert "provider bare has no servers, and 1 task waits for it" in found.out


def test_a_resting_server_is_listed_and_reported_and_tasks_show_their_server(shell: Shell) -> None:
    assert quickly(shell, "servers", "set", "weak", "http://weak=1", "--app", "app").code == 0
    (task_id,) = shell.enqueue("break_it")
    assert shell.run("worker", "app", "--drain").code == 0
    (server,) = [server for server in lines(shell, "servers") if server["provider"] == "weak"]
    assert (server["failures"], server["in_use"]) == (1, 0)
    assert server["backs_off_until"] is not None
    listed = shell.run("servers", "--app", "app", COLUMNS="120").out
    assert re.search("out of service: 1 failure in a row; next try in 1[45] min", listed), listed
    shown = quickly(shell, "tasks", "show", str(task_id), "--app", "app").out
    assert any(line.split() == ["server", "http://weak"] for line in shown.splitlines())
    doctor = quickly(shell, "doctor", "--app", "app", "--json").document
    problems = [finding["problem"] for finding in doctor["problems"]]
    assert "server http://weak of provider weak is out of service: 1 failure in a row" in problems
    assert {kind["kind"]: kind["timeout"] for kind in doctor["kinds"]}["break_it"] == 7


def test_a_task_in_a_key_queue_shows_its_key(shell: Shell) -> None:
    with shell.engine as engine:
        (handle,) = engine.enqueue_sync([engine.call("bill", customer="ada")])
    assert shell.run("worker", "app", "--drain").code == 0
    shown = quickly(shell, "tasks", "show", str(handle.id), "--app", "app").out
    assert any(line.split() == ["limit", "key", "ada"] for line in shown.splitlines())
