"""`synergon nodes`: lists the nodes of a database, and cordons, drains, restarts or stops one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli import completion
from synergon.cli.command_groups import ListGroup
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import console, duration, new_table, print_line, short, show_list, write_json, write_json_lines
from synergon.cli.watch import WatchCommand, WatchOption, run_watched
from synergon.client.node_overview import NodeOverview, read_overviews, threads_in_use
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.node_status import NodeStatus
from synergon.model.operator_actions import AuditRecord
from synergon.model.requirements import PROCESS, SLOT, THREAD, UNIT, queue_bound
from synergon.options.settings import queue_words

WIDE_COLUMNS: Final = 120
PLAIN_NAMES: Final = {PROCESS: "child_processes", THREAD: "threads", SLOT: "slots"}
WIDE_HEADINGS: Final = ("id", "address", "version")
"""Columns that only wide terminals show. `--json` has all."""

DEPARTURE_TEXTS: Final = {"drain": "draining", "restart": "restarting"}
"""The text for the status of a node that stops when its running tasks have ended."""

AllOption = Annotated[bool, typer.Option("--all", help="Also list engines that run no tasks and wait for results.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", hidden=True, autocompletion=completion.nodes)]

commands: Final = typer.Typer(
    help="List, cordon, drain, restart or stop nodes. Without a command: list.", cls=ListGroup
)


@commands.command("list", cls=WatchCommand)
def list_nodes(
    app: AppOption = None,
    url: UrlOption = None,
    is_all: AllOption = False,
    watch: WatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the nodes.

    Shows running tasks and slots of each, and includes dead nodes that have not been reaped yet. A terminal of 120
    columns also shows ids, addresses and versions; so does --json, with one node per line.
    """

    def show(rows: list[NodeOverview]) -> None:
        if as_json:
            write_json_lines(row.document() for row in rows)
            return
        show_list(rows, lambda: _table(rows), as_json=False, nothing="there are no nodes; `synergon worker` starts one")

    run_watched(app, url, partial(_read, is_all=is_all), show, watch, as_json=as_json)


@commands.command()
def cordon(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Keep a node from starting tasks.

    Running tasks go on. NODE is the id of the node, or its name if that is unique.
    """
    _request("cordon", node, app, url, as_json=as_json)


@commands.command()
def uncordon(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Let a cordoned node start tasks again.

    This also ends a drain or restart, as long as the node has not stopped.
    """
    _request("uncordon", node, app, url, as_json=as_json)


@commands.command()
def drain(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Cordon a node, and stop it when its running tasks have ended.

    It waits for them as long as they take; the worker's process then exits with code 0.
    """
    _request("drain", node, app, url, as_json=as_json)


@commands.command()
def restart(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Cordon a node, and restart it when its running tasks have ended.

    The worker's process exits with code 86; its supervisor (`worker --processes`, systemd, ...) starts it again.
    """
    _request("restart", node, app, url, as_json=as_json)


@commands.command()
def stop(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Stop a node gracefully.

    Running tasks have the grace period of the node; then the worker's process exits.
    """
    _request("stop", node, app, url, as_json=as_json)


def _request(verb: str, node: str, app: str | None, url: str | None, *, as_json: bool) -> None:
    async def write(engine: Engine) -> AuditRecord:
        node_id = await _node_id(engine, node)
        request = {
            "cordon": engine.cordon,
            "uncordon": engine.uncordon,
            "drain": engine.drain,
            "restart": engine.restart,
            "stop": engine.shut_down,
        }[verb]
        await request(node_id)
        return next(entry for entry in await engine.audit() if (entry.verb, entry.subject) == (verb, node_id))

    entry = run_connected(app, url, write)
    if as_json:
        write_json(entry)
    else:
        print_line(f"requested: {verb} of node {entry.subject}; `synergon audit` shows the outcome")


async def _node_id(engine: Engine, wanted: str) -> str:
    found = await engine.nodes()
    if wanted in {node.id for node in found}:
        return wanted
    named = [node.id for node in found if node.name == wanted]
    if len(named) > 1:
        raise OptionError(f"several nodes are named {wanted!r}; give the id of one: {', '.join(named)}")
    return named[0] if named else wanted  # the engine rejects an unknown id, and the audit records that


async def _read(engine: Engine, *, is_all: bool) -> list[NodeOverview]:
    return await read_overviews(engine._store, with_waiting=is_all)


def threads_text(state: NodeStatus) -> str:
    """The threads of a node in a table: in use and in total."""
    in_use = threads_in_use(state)
    return "" if in_use is None else f"{in_use}/{state.totals[THREAD] // UNIT}"


def _table(rows: Sequence[NodeOverview]) -> Table:
    is_wide = console.width >= WIDE_COLUMNS
    headings = (
        *("name", "", "running", "threads", "lease", "host", "pid", "kinds", "queues"),
        *(WIDE_HEADINGS if is_wide else ()),
    )
    table = new_table(
        *headings,
        numbers=("running", "threads", "pid"),
        elastic=("host", "kinds", "queues", "address"),
        dispensable=("threads", "pid", "queues", "host", "lease"),
    )
    for row in rows:
        table.add_row(
            row.name,
            _status(row),
            f"{row.running}/{row.concurrency}",
            threads_text(row.state),
            duration(round(row.lease_remaining)) if row.lease_remaining > 0 else "expired",
            short(row.host),
            str(row.pid),
            short(", ".join(row.kinds) or "none"),
            short(", ".join(_queues(row, row.queues)) or "none") if row.queues is not None else "all",
            *((row.id, short(row.address or "none"), row.version) if is_wide else ()),
        )
    return table


def _queues(row: NodeOverview, names: Iterable[str]) -> list[str]:
    """The queues of a node, with their bounds, as its command line has them."""
    bounds = {name: row.state.totals.get(queue_bound(name)) for name in names}
    return queue_words({name: None if bound is None else bound // UNIT for name, bound in bounds.items()})


def _status(row: NodeOverview) -> Text:
    if not row.is_alive:
        return Text("dead", style="red")
    if row.is_cordoned:
        return Text(DEPARTURE_TEXTS.get(row.departure or "", "cordoned"), style="yellow")
    return Text("alive", style="green") if row.runs_tasks else Text("only waits", style="dim")
