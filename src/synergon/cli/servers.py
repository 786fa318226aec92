"""`synergon servers`: lists and changes the servers of providers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.command_groups import ListGroup, number_or_none, shown_limit
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import new_table, plural, print_line, relative, show_list, write_json_lines
from synergon.cli.watch import WatchCommand, WatchOption, run_watched
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.limits import ServerRecord
from synergon.model.record import to_datetime
from synergon.options.addresses import normal_address

ProviderName = Annotated[str, typer.Argument(metavar="PROVIDER", hidden=True)]
Pool = Annotated[list[str], typer.Argument(metavar="ADDRESS=CAPACITY", hidden=True)]

commands: Final = typer.Typer(help="List and change the servers of providers. Without a command: list.", cls=ListGroup)


@commands.command("list", cls=WatchCommand)
def list_servers(
    app: AppOption = None, url: UrlOption = None, watch: WatchOption = None, as_json: JsonOption = False
) -> None:
    """List the servers.

    Shows the permits in use, failures and servers that back off; with --json one server per line.
    """

    async def read(engine: Engine) -> tuple[list[ServerRecord], datetime]:
        return await engine.servers(), to_datetime(await engine._store.now())

    def show(found: tuple[list[ServerRecord], datetime]) -> None:
        show_list(found[0], lambda: _table(*found), as_json=as_json, nothing="there are no servers")

    run_watched(app, url, read, show, watch, as_json=as_json)


def _table(found: list[ServerRecord], now: datetime) -> Table:
    headings = ("provider", "address", "capacity", "in use", "failures", "")
    numbers = ("capacity", "in use", "failures")
    table = new_table(*headings, numbers=numbers, elastic=("",), dispensable=(*reversed(numbers), "provider"))
    for server in found:
        table.add_row(
            server.provider,
            server.address,
            shown_limit(server.capacity),
            str(server.in_use),
            str(server.failures),
            _status(server, now),
        )
    return table


def _status(server: ServerRecord, now: datetime) -> Text:
    if server.is_removed:
        return Text("removed", style="dim")
    if server.backs_off_until is None:
        return Text("")
    if server.is_suspended(now):
        again = f"next {'probe' if server.has_probe else 'try'} {relative(server.backs_off_until, now)}"
        return Text(f"out of service: {server.failure_text}; {again}", style="yellow")
    return Text("on trial: one at a time", style="yellow")


@commands.command("set")
def set_servers(
    provider: ProviderName, pool: Pool, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Replace the pool of a provider for the whole cluster.

    The new pool is all servers given as ADDRESS=CAPACITY; capacity 0 closes a server, none means no limit. Tasks on
    servers that are not given finish there. The change holds until the code declares a new pool.
    """
    capacities = _capacities(pool)

    async def write(engine: Engine) -> list[ServerRecord]:
        await engine.set_servers(provider, capacities)
        return [server for server in await engine.servers() if server.provider == provider]

    found = run_connected(app, url, write)
    if as_json:
        write_json_lines(found)
        return
    removed = sum(server.is_removed for server in found)
    finishing = f"; tasks on {plural(removed, 'removed server')} finish there" if removed else ""
    print_line(f"provider {provider} has {plural(len(found) - removed, 'server')} now{finishing}")


Address = Annotated[str, typer.Argument(metavar="ADDRESS", hidden=True)]
ProviderOption = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="The provider, if several have this server.")
]


@commands.command("add")
def add_server(
    address: Annotated[str, typer.Argument(metavar="ADDRESS[=CAPACITY]", hidden=True)],
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="NAME", help="The provider, if there are several.")
    ] = None,
    app: AppOption = None,
    url: UrlOption = None,
) -> None:
    """Add a server to the pool of a provider, or change its capacity.

    The server is given as ADDRESS=CAPACITY; without a capacity it gets 1, and none means no limit. Other servers stay
    as they are. The change holds until the code declares a new pool.
    """
    name, capacity = _one_server(address)

    async def write(engine: Engine) -> str:
        pool = await _provider_to_extend(engine, provider)
        await engine.add_server(pool, name, capacity)
        return f"server {name} of provider {pool} has capacity {shown_limit(capacity)} now"

    print_line(run_connected(app, url, write))


@commands.command("remove")
def remove_server(
    address: Address, provider: ProviderOption = None, app: AppOption = None, url: UrlOption = None
) -> None:
    """Remove a server from the pool of its provider.

    Tasks on it finish there; commands that wait for it fail. Its health is forgotten: a server that is removed and
    added is in service at once. The change holds until the code declares a new pool.
    """

    async def write(engine: Engine) -> str:
        pool = await _provider_of(engine, address, provider)
        await engine.remove_server(pool, address)
        return f"server {address} is removed from provider {pool}; its tasks finish there"

    print_line(run_connected(app, url, write))


@commands.command("close")
def close_server(
    address: Address, provider: ProviderOption = None, app: AppOption = None, url: UrlOption = None
) -> None:
    """Close a server: it stays in the pool with capacity 0.

    Tasks on it finish there. `synergon servers add ADDRESS=CAPACITY` opens it again.
    """

    async def write(engine: Engine) -> str:
        pool = await _provider_of(engine, address, provider)
        await engine.close_server(pool, address)
        return f"server {address} of provider {pool} is closed; its tasks finish there"

    print_line(run_connected(app, url, write))


def _one_server(entry: str) -> tuple[str, int | None]:
    """The address and capacity of `ADDRESS=CAPACITY`. The capacity may be left out; an address may have a query."""
    address, separator, capacity = entry.rpartition("=")
    if not separator or "?" in address:
        return entry, 1
    return address, number_or_none(capacity, f"the capacity of {address}")


async def _provider_to_extend(engine: Engine, name: str | None) -> str:
    """The provider to which a server is added: the named one, or the only one that there is."""
    if name is not None:
        return name
    known = {server.provider for server in await engine.servers()} | set(engine._registry.providers)
    if len(known) == 1:
        return known.pop()
    raise OptionError(f"say which provider gets the server: --provider NAME; known are: {_listed(known)}")


async def _provider_of(engine: Engine, address: str, name: str | None) -> str:
    """The provider that has this server: the named one, or the only one that has it."""
    if name is not None:
        return name
    servers = [server for server in await engine.servers() if not server.is_removed]
    wanted = normal_address(address)
    found = {server.provider for server in servers if server.address == wanted}
    if len(found) == 1:
        return found.pop()
    if found:
        raise OptionError(f"several providers have the server {address}; say which: --provider {_listed(found)}")
    raise OptionError(f"no provider has a server {address}; known are: {_listed({one.address for one in servers})}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _capacities(pool: list[str]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for entry in pool:
        address, separator, capacity = entry.rpartition("=")
        if not separator or not address:
            raise OptionError(f"a server is written ADDRESS=CAPACITY, like http://gpu1:8000=4, got {entry!r}")
        if address in found:
            raise OptionError(f"{address!r} is named twice; name it once and give it a capacity")
        found[address] = number_or_none(capacity, f"the capacity of {address}")
    return found
