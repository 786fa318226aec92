"""`synergon nodes`: who runs tasks on this database, and with how much room; and telling them to take no more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.command_groups import is_alone
from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import console, duration, new_table, say, short, show_list, write_json
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.node_status import NodeStatus
from synergon.model.nodes import NodeRecord
from synergon.model.operator_actions import AuditRecord
from synergon.model.process_identity import is_gone
from synergon.model.record import Record

WIDE_COLUMNS: Final = 120
WIDE_HEADINGS: Final = ("id", "address", "version")
"""What a narrow terminal has no room for; --json has all of it."""

STANDINGS: Final = {"drain": "drains", "restart": "restarts"}
"""How a node is shown that ends when nothing runs there any more."""

AllOption = Annotated[bool, typer.Option("--all", help="Also the engines that run nothing and only wait for results.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", hidden=True)]

commands = typer.Typer(
    help="List the nodes, and tell one to take no more work, to restart or to stop.", invoke_without_command=True
)


class NodeRow(Record, frozen=True, kw_only=True):
    """A node, and what it does now. The field names are those of `nodes --json`."""

    id: str
    name: str
    host: str
    pid: int
    is_alive: bool
    """Its lease has not run out, and its process is there, as far as this host can see."""
    runs_tasks: bool
    """False: an engine that only waits for results, and can be told of them."""
    kinds: tuple[str, ...]
    queues: tuple[str, ...] | None
    """None: all of them."""
    concurrency: int
    running: int
    """Tasks that the store counts as its own; those of a dead node are about to be taken from it."""
    free: int
    """Slots that nothing runs in and that something may; a dead or cordoned node has none."""
    is_cordoned: bool
    """It may start nothing new."""
    cordoned_at: datetime | None
    leaving: str | None
    """`drain` or `restart`: it ends when nothing runs there any more, and why."""
    address: str | None
    """Where peers reach it; None: nowhere."""
    version: str
    registered_at: datetime
    lease_left: float
    """Seconds by the store's clock; negative: it is over."""
    state: NodeStatus
    """What it said of itself last."""
    state_age: float
    """Seconds by the store's clock since then."""


@commands.callback()
def nodes(
    context: typer.Context,
    app: AppOption = None,
    url: UrlOption = None,
    is_all: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the nodes.

    With the tasks that run on each and its slots; dead ones that nobody has noticed yet included. A terminal of 120
    columns also shows ids, addresses and versions, and so does --json, one node per line.
    """
    if not is_alone(context, has_options=bool(app or url or is_all or as_json)):
        return
    lines = asyncio.run(_read(app, url, is_all=is_all))
    show_list(lines, lambda: _table(lines), as_json=as_json, nothing="there are no nodes; `synergon worker` starts one")


@commands.command()
def cordon(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Let a node start nothing new.

    From this moment on; what runs there goes on. NODE is its id, or its name if no other node has it.
    """
    _tell("cordon", node, app, url, as_json=as_json)


@commands.command()
def uncordon(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Let a cordoned node start tasks again.

    Also one that drains or restarts, as long as it has not stopped.
    """
    _tell("uncordon", node, app, url, as_json=as_json)


@commands.command()
def drain(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Cordon a node, and have it stop when nothing runs there.

    It waits for running tasks as long as they take; a worker's process then ends with code 0.
    """
    _tell("drain", node, app, url, as_json=as_json)


@commands.command()
def restart(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Cordon a node, and have it restart when nothing runs there.

    A worker's process ends with code 86. Whatever watches over it (`worker --processes`, systemd, ...) starts it again.
    """
    _tell("restart", node, app, url, as_json=as_json)


@commands.command()
def stop(node: NodeName, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Have a node stop in order, with its own grace; a worker's process ends."""
    _tell("stop", node, app, url, as_json=as_json)


def _tell(verb: str, node: str, app: str | None, url: str | None, *, as_json: bool) -> None:
    async def write() -> AuditRecord:
        async with connected(app, url) as engine:
            node_id = await _node_id(engine, node)
            give = {
                "cordon": engine.cordon,
                "uncordon": engine.uncordon,
                "drain": engine.drain,
                "restart": engine.restart,
                "stop": engine.shut_down,
            }[verb]
            await give(node_id)
            return next(order for order in await engine.audit() if (order.verb, order.subject) == (verb, node_id))

    order = asyncio.run(write())
    if as_json:
        write_json(order)
    else:
        say(f"node {order.subject} is told to {verb}; `synergon audit` shows when it has done so")


async def _node_id(engine: Engine, wanted: str) -> str:
    found = await engine.nodes()
    if wanted in {node.id for node in found}:
        return wanted
    named = [node.id for node in found if node.name == wanted]
    if len(named) > 1:
        raise OptionError(f"several nodes are named {wanted!r}; give the id of one: {', '.join(named)}")
    return named[0] if named else wanted  # which is then refused, and that is written down


async def _read(app: str | None, url: str | None, *, is_all: bool) -> list[NodeRow]:
    async with connected(app, url) as engine:
        found = await engine.store.nodes()
        running = await engine.store.running_by_node()
    return [_line(node, running.get(node.id, 0)) for node in found if is_all or node.concurrency]


def _line(node: NodeRecord, running: int) -> NodeRow:
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
        leaving=node.state.leaving if node.is_cordoned else None,
        address=node.address,
        version=node.version,
        registered_at=node.registered_at,
        lease_left=node.lease_left,
        state=node.state,
        state_age=node.published_ago,
    )


def is_alive(node: NodeRecord) -> bool:
    """Whether it may still act, and, if it is a process of this host, is there."""
    return node.lease_left > 0 and not is_gone(node.process)


def _table(lines: Sequence[NodeRow]) -> Table:
    is_wide = console.width >= WIDE_COLUMNS
    headings = ("name", "", "running", "lease", "host", "pid", "kinds", "queues", *(WIDE_HEADINGS if is_wide else ()))
    table = new_table(*headings, numbers=("running", "pid"), elastic=("name", "host", "kinds", "queues", "address"))
    for line in lines:
        table.add_row(
            short(line.name),
            _standing(line),
            f"{line.running}/{line.concurrency}",
            duration(round(line.lease_left)) if line.lease_left > 0 else "over",
            short(line.host),
            str(line.pid),
            short(", ".join(line.kinds) or "none"),
            short(", ".join(line.queues) or "none") if line.queues is not None else "all",
            *((line.id, short(line.address or "none"), line.version) if is_wide else ()),
        )
    return table


def _standing(line: NodeRow) -> Text:
    if not line.is_alive:
        return Text("dead", style="red")
    if line.is_cordoned:
        return Text(STANDINGS.get(line.leaving or "", "cordoned"), style="yellow")
    return Text("alive", style="green") if line.runs_tasks else Text("only waits", style="dim")
