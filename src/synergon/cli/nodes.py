"""`synergon nodes`: lists the nodes of a database, and cordons, drains, restarts or stops one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.command_groups import has_no_subcommand
from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import console, duration, new_table, print_line, short, show_list, write_json
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.node_status import NodeStatus
from synergon.model.nodes import NodeRecord
from synergon.model.operator_actions import AuditRecord
from synergon.model.process_identity import is_gone
from synergon.model.record import Record
from synergon.model.requirements import UNIT, queue_bound
from synergon.options.settings import queue_words
from synergon.options.store_urls import shown

WIDE_COLUMNS: Final = 120
WIDE_HEADINGS: Final = ("id", "address", "version")
"""Columns that only wide terminals show. `--json` has all."""

DEPARTURE_TEXTS: Final = {"drain": "draining", "restart": "restarting"}
"""The text for the status of a node that stops when its running tasks have ended."""

AllOption = Annotated[bool, typer.Option("--all", help="Also list engines that run no tasks and wait for results.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", hidden=True)]

commands = typer.Typer(help="List the nodes; cordon, drain, restart or stop one.", invoke_without_command=True)


class NodeRow(Record, frozen=True, kw_only=True):
    """A node in the list. The field names are those of `nodes --json`."""

    id: str
    name: str
    host: str
    pid: int
    is_alive: bool
    """Whether the lease is live and, if the node is on this host, its process exists."""
    runs_tasks: bool
    """Whether the engine runs tasks. False for one that only waits for results."""
    kinds: tuple[str, ...]
    queues: tuple[str, ...] | None
    """The queues that the node serves. None means all queues."""
    concurrency: int
    running: int
    """The number of tasks that run on the node, according to the store. Those of a dead node are about to be reaped."""
    free: int
    """The number of free slots. 0 for a dead or cordoned node."""
    is_cordoned: bool
    """Whether the node starts no new tasks."""
    cordoned_at: datetime | None
    departure: str | None
    """`drain` or `restart`, if the node stops when its running tasks have ended. None otherwise."""
    address: str | None
    """The address for peers. None if peers cannot reach the node."""
    version: str
    registered_at: datetime
    lease_remaining: float
    """The seconds until the lease ends, by the store's clock. Negative after it has ended."""
    state: NodeStatus
    """The status that the node published last."""
    state_age: float
    """The age of that status in seconds, by the store's clock."""


@commands.callback()
def nodes(
    context: typer.Context,
    app: AppOption = None,
    url: UrlOption = None,
    is_all: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the nodes.

    Shows running tasks and slots of each, and includes dead nodes that have not been reaped yet. A terminal of 120
    columns also shows ids, addresses and versions; so does --json, with one node per line.
    """
    if not has_no_subcommand(context, has_options=bool(app or url or is_all or as_json)):
        return
    rows = asyncio.run(_read(app, url, is_all=is_all))
    show_list(rows, lambda: _table(rows), as_json=as_json, nothing="there are no nodes; `synergon worker` starts one")


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
    async def write() -> AuditRecord:
        async with connected(app, url) as engine:
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

    entry = asyncio.run(write())
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


async def _read(app: str | None, url: str | None, *, is_all: bool) -> list[NodeRow]:
    async with connected(app, url) as engine:
        found = await engine.store.nodes()
        running = await engine.store.running_by_node()
    return [_row(node, running.get(node.id, 0)) for node in found if is_all or node.concurrency]


def _row(node: NodeRecord, running: int) -> NodeRow:
    alive = is_alive(node)
    return NodeRow(
        id=node.id,
        name=node.name,
        host=node.process.host,
        pid=node.process.pid,
        is_alive=alive,
        runs_tasks=bool(node.concurrency),
        kinds=node.kinds,
        queues=node.queues,
        concurrency=node.concurrency,
        running=running,
        free=max(node.concurrency - running, 0) if alive and not node.is_cordoned else 0,
        is_cordoned=node.is_cordoned,
        cordoned_at=node.cordoned_at,
        departure=node.state.departure if node.is_cordoned else None,
        address=shown(node.address) if node.address is not None else None,
        version=node.version,
        registered_at=node.registered_at,
        lease_remaining=node.lease_remaining,
        state=node.state,
        state_age=node.published_ago,
    )


def is_alive(node: NodeRecord) -> bool:
    """Whether the lease of the node is live and, if the node is on this host, its process exists."""
    return node.lease_remaining > 0 and not is_gone(node.process)


def _table(rows: Sequence[NodeRow]) -> Table:
    is_wide = console.width >= WIDE_COLUMNS
    headings = ("name", "", "running", "lease", "host", "pid", "kinds", "queues", *(WIDE_HEADINGS if is_wide else ()))
    table = new_table(*headings, numbers=("running", "pid"), elastic=("name", "host", "kinds", "queues", "address"))
    for row in rows:
        table.add_row(
            short(row.name),
            _status(row),
            f"{row.running}/{row.concurrency}",
            duration(round(row.lease_remaining)) if row.lease_remaining > 0 else "expired",
            short(row.host),
            str(row.pid),
            short(", ".join(row.kinds) or "none"),
            short(", ".join(_queues(row, row.queues)) or "none") if row.queues is not None else "all",
            *((row.id, short(row.address or "none"), row.version) if is_wide else ()),
        )
    return table


def _queues(row: NodeRow, names: Iterable[str]) -> list[str]:
    """The queues of a node, with their bounds, as its command line has them."""
    bounds = {name: row.state.totals.get(queue_bound(name)) for name in names}
    return queue_words({name: None if bound is None else bound // UNIT for name, bound in bounds.items()})


def _status(row: NodeRow) -> Text:
    if not row.is_alive:
        return Text("dead", style="red")
    if row.is_cordoned:
        return Text(DEPARTURE_TEXTS.get(row.departure or "", "cordoned"), style="yellow")
    return Text("alive", style="green") if row.runs_tasks else Text("only waits", style="dim")
