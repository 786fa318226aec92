"""`synergon stats`: rates, times and the commonest errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell.in_folder(tmp_path)
    with shell.engine:  # makes the database
        pass
    return shell


def test_a_store_in_which_nothing_was_counted_says_so(shell: Shell) -> None:
    found = shell.run("stats", "--app", "app")
    assert (found.code, found.out) == (0, "nothing was counted in this time\n")
    assert shell.run("stats", "--app", "app", "--json").out == ""


def test_kinds_have_their_numbers_and_their_commonest_errors(shell: Shell) -> None:
    shell.enqueue("greet", number=3, name="Ada")
    shell.enqueue("send", to="a@b.c")
    shell.run("worker", "app", "--drain")
    found = shell.run("stats", "--app", "app", COLUMNS="80")
    assert found.code == 0
    lines = found.out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("the last 60 min; the bars are starts, by minute")
    (greet,) = [line for line in lines if line.startswith("greet")]
    assert greet.split()[2] == "3"
    assert "█" in greet
    (error,) = [line for line in lines if " send " in line]
    assert error.split()[0] == "2", "both attempts"
    only = shell.run("stats", "--app", "app", "--kind", "greet", "--since", "1d", "--json")
    (document,) = [json.loads(line) for line in only.out.splitlines()]
    assert (document["kind"], document["accepted"], document["started"], document["succeeded"]) == ("greet", 3, 3, 3)
    assert document["failed"] == {}
    assert document["run"]["count"] == 3
    assert 0 <= document["run"]["p50_seconds"] <= document["run"]["p95_seconds"]
    assert document["started_per_second"] == pytest.approx(3 / 86400)


def test_a_wrong_time_is_named(shell: Shell) -> None:
    found = shell.run("stats", "--app", "app", "--since", "yesterday")
    assert found.code == 2
    assert "since must be seconds or a duration" in found.err
