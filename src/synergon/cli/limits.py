"""`synergon limits`: lists and changes the limits of the cluster."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from synergon.cli.command_groups import has_no_subcommand, number_or_none, shown_limit
from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import duration, new_table, print_line, short, show_list, write_json
from synergon.model.limits import LimitRecord, NewRate
from synergon.options.options import check_any_limit_name

Name = Annotated[str, typer.Argument(metavar="NAME", hidden=True)]
Value = Annotated[str, typer.Argument(metavar="VALUE", hidden=True)]

commands = typer.Typer(help="List and change limits.", invoke_without_command=True)


@commands.callback()
def limits(context: typer.Context, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List and change the limits of the cluster.

    Without a command, list them.
    """
    if has_no_subcommand(context, has_options=bool(app or url or as_json)):
        list_limits(app, url, as_json)


@commands.command("list")
def list_limits(app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the limits.

    Shows the permits in use and the tasks waiting for each limit; with --json one limit per line.
    """

    async def read() -> list[LimitRecord]:
        async with connected(app, url) as engine:
            return await engine.limits()

    found = asyncio.run(read())
    show_list(found, lambda: _table(found), as_json=as_json, nothing="there are no limits")


def _table(found: list[LimitRecord]) -> Table:
    has_rates = any(limit.rate for limit in found)
    headings = ("limit", "value", "in use", "waiting", *(("rate",) if has_rates else ()))
    table = new_table(*headings, numbers=("value", "in use", "waiting"), elastic=("limit",))
    for limit in found:
        rate = (_rate(limit.rate),) if has_rates else ()
        table.add_row(short(limit.name), shown_limit(limit.value), str(limit.in_use), str(limit.waiting), *rate)
    return table


def _rate(rate: NewRate | None) -> str:
    if rate is None:
        return ""
    return f"one every {duration(rate.every / 1_000_000)}" + (f", {rate.burst} at once" if rate.burst > 1 else "")


@commands.command("set")
def set_limit(
    name: Name, value: Value, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Change a limit for the whole cluster.

    VALUE is how many tasks may run at once; 0 closes the limit, none removes the bound. Running tasks go on. The change
    holds until the code declares a new value.
    """
    wanted = number_or_none(value, "VALUE")

    async def write() -> LimitRecord:
        async with connected(app, url) as engine:
            await engine.set_limit(name, wanted)
            return next(limit for limit in await engine.limits() if limit.name == check_any_limit_name(name))

    changed = asyncio.run(write())
    if as_json:
        write_json(changed)
    else:
        print_line(f"limit {changed.name} is {shown_limit(changed.value)} now; {changed.in_use} in use")
