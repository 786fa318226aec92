"""Every command that prints a table, on a terminal of 80 columns and in a pipe: names stay whole."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
from rich.console import Console
from tests.cluster.cli_support import Shell, quickly, until
from tests.cluster.terminal import on_terminal

from synergon import Server, State
from synergon.cli.output import new_table, short

KIND = "summarize_conversation_of_a_customer_with_the_model"
QUEUE = "notifications-transactional-high-priority"
LIMIT = "concurrency-of-the-payment-provider-worldwide"
SCHEDULE = "refresh-materialized-views-of-the-reporting-database"
FLOW = "nightly-import-of-the-catalogues-of-partners"
WORKER = "checkout-worker-eu-west-1-production-0"
SERVER = "https://inference-gateway-01.eu-west-1.internal.example.com:8443/v1"
PROVIDER = "inference-gateway-eu"

APP = f"""
from synergon import Engine, Server, Retry

engine = Engine("sqlite:///app.db")
engine.limit({LIMIT!r}, 3)
gateway = engine.provider({PROVIDER!r}, servers={{{SERVER!r}: 4}})


@gateway.task(queue={QUEUE!r}, limits=[{LIMIT!r}])
async def {KIND}(server: Server) -> None:
    raise ValueError("a message that is longer than the part of the line that is left for it, and then some")


@engine.every("1h", name={SCHEDULE!r})
@engine.task
async def refresh() -> None: ...
"""

COMMANDS = {
    "tasks list": KIND,
    "tasks show 1": f"{WORKER} on ",
    "queues list": QUEUE,
    "nodes list": WORKER,
    "servers list": SERVER,
    "limits list": LIMIT,
    "schedules list": SCHEDULE,
    "schedules next": SCHEDULE,
    "flows list": FLOW,
    "flows show 2": KIND,
    "audit": QUEUE,
    "stats": KIND,
    "status": WORKER,
    "doctor": KIND,
    "top": WORKER,
}
"""The commands, and a name that each has to show."""
UNBOUNDED = {"tasks show 1", "flows show 2", "doctor", "status", "schedules next"}
"""Commands that print sentences, tracebacks, or names and times that need more: the terminal wraps them."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A folder with a worker, in which everything has a long name."""
    shell = Shell.in_folder(tmp_path_factory.mktemp("narrow"))
    (shell.folder / "app.py").write_text(APP)
    del shell.environment["COLUMNS"]
    with shell.start("worker", "app", "--name", WORKER) as worker:
        worker.until_says("runs 2 kinds")
        with shell.engine as engine:

            @engine.provider(PROVIDER, servers={SERVER: 4}).task(name=KIND, queue=QUEUE)
            async def summarize(server: Server) -> None: ...

            summarize.enqueue_sync()
            flow = engine.flow(FLOW)
            flow.add(summarize.call())
            flow.enqueue_sync()
            until(lambda: len(engine.tasks_sync(state=State.FAILED)) == 2)
            engine.pause_sync(QUEUE)
        until(lambda: KIND in quickly(shell, "stats", "--app", "app").out)
        yield shell


def test_names_stay_whole_on_a_terminal_of_80_columns(shell: Shell) -> None:
    for command, name in COMMANDS.items():
        with on_terminal(shell, *command.split(), "--app", "app") as terminal:
            terminal.until_shows(re.escape(name))
            if command == "top":
                terminal.press("q")
            terminal.ended()
            shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.text)
            too_long = [line for line in shown.splitlines() if len(line.rstrip()) > 80]
        assert not too_long or command in UNBOUNDED, command


def test_nothing_is_cut_in_a_pipe(shell: Shell) -> None:
    for command, name in COMMANDS.items():
        shown = shell.run(*command.split(), "--app", "app").out
        assert (name in shown, "…" in shown) == (True, False), command


def test_columns_shrink_then_go_and_names_are_longer_than_the_terminal_if_they_must() -> None:
    def lines(width: int) -> list[str]:
        headings = ("name", "count", "age", "note")
        table = new_table(*headings, numbers=("count",), elastic=("note",), dispensable=("count", "age"))
        table.add_row("a-name-of-20-letters", "1", "15 min", short("a note of 20 letters"))
        output = io.StringIO()
        Console(file=output, width=width).print(table, crop=False)
        return [line.rstrip() for line in output.getvalue().splitlines()]

    assert lines(60)[1] == "a-name-of-20-letters      1  15 min  a note of 20 letters"
    assert lines(50)[1] == "a-name-of-20-letters      1  15 min  a note of 20…"
    assert lines(40)[1] == "a-name-of-20-letters  15 min  a note of…"
    assert lines(37)[1] == "a-name-of-20-letters      1  a note …", "there is room for the shorter one"
    assert lines(30)[1] == "a-name-of-20-letters  a note …"
    assert lines(10)[1] == "a-name-of-20-letters  a note …"
