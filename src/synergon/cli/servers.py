"""`synergon servers`: lists and changes the servers of providers."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.command_groups import has_no_subcommand, number_or_none, shown_limit
from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import new_table, plural, print_line, relative, short, show_list, write_json_lines
from synergon.errors import OptionError
from synergon.model.limits import ServerRecord
from synergon.model.record import to_datetime

ProviderName = Annotated[str, typer.Argument(metavar="PROVIDER", hidden=True)]
Pool = Annotated[list[str], typer.Argument(metavar="ADDRESS=CAPACITY", hidden=True)]

commands = typer.Typer(help="List and change the servers of providers.", invoke_without_command=True)


@commands.callback()
def servers(context: typer.Context, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List and change the servers of providers.

    Without a command, list them.
    """
    if has_no_subcommand(context, has_options=bool(app or url or as_json)):
        list_servers(app, url, as_json)


@commands.command("list")
def list_servers(app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the servers.

    Shows the permits in use, failures and servers that back off; with --json one server per line.
    """

    async def read() -> tuple[list[ServerRecord], datetime]:
        async with connected(app, url) as engine:
            return await engine.servers(), to_datetime(await engine.store.now())

    found, now = asyncio.run(read())
    show_list(found, lambda: _table(found, now), as_json=as_json, nothing="there are no servers")


def _table(found: list[ServerRecord], now: datetime) -> Table:
    headings = ("provider", "address", "capacity", "in use", "failures", "")
    table = new_table(*headings, numbers=("capacity", "in use", "failures"), elastic=("provider", "address"))
    for server in found:
        table.add_row(
            short(server.provider),
            short(server.address),
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
    if server.backs_off_until > now:
        return Text(f"backs off, next try {relative(server.backs_off_until, now)}", style="yellow")
    return Text("on trial", style="yellow")


@commands.command("set")
def set_servers(
    provider: ProviderName, pool: Pool, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Replace the pool of a provider for the whole cluster.

    The new pool is all servers given as ADDRESS=CAPACITY; capacity 0 closes a server, none means no limit. Tasks on
    servers that are not given finish there. The change holds until the code declares a new pool.
    """
    capacities = _capacities(pool)

    async def write() -> list[ServerRecord]:
        async with connected(app, url) as engine:
            await engine.set_servers(provider, capacities)
            return [server for server in await engine.servers() if server.provider == provider]

    found = asyncio.run(write())
    if as_json:
        write_json_lines(found)
        return
    removed = sum(server.is_removed for server in found)
    finishing = f"; tasks on {plural(removed, 'removed server')} finish there" if removed else ""
    print_line(f"provider {provider} has {plural(len(found) - removed, 'server')} now{finishing}")


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
