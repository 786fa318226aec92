"""`synergon limits`: lists and changes the limits of the cluster."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from msgspec import UNSET
from rich.table import Table

from synergon.cli import completion
from synergon.cli.command_groups import ListGroup, number_or_none, shown_limit
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import duration, new_table, print_line, short, show_list, write_json
from synergon.cli.watch import WatchCommand, WatchOption, run_watched
from synergon.engine import Engine
from synergon.model.limits import LimitRecord, NewBatch
from synergon.options.options import check_any_limit_name
from synergon.policies import Rate, rate_text

Name = Annotated[str, typer.Argument(metavar="NAME", hidden=True, autocompletion=completion.limits)]
Value = Annotated[str | None, typer.Argument(metavar="[VALUE]", hidden=True)]
RateOption = Annotated[
    str | None, typer.Option("--rate", metavar="RATE", help="How fast tasks may start: 600/1m, or none.")
]
BurstOption = Annotated[int | None, typer.Option("--burst", metavar="N", help="How many may start at once.")]

commands: Final = typer.Typer(help="List and change limits. Without a command: list.", cls=ListGroup)


@commands.command("list", cls=WatchCommand)
def list_limits(
    app: AppOption = None, url: UrlOption = None, watch: WatchOption = None, as_json: JsonOption = False
) -> None:
    """List the limits.

    Shows the permits in use and the tasks waiting for each limit; with --json one limit per line.
    """

    def show(found: list[LimitRecord]) -> None:
        show_list(found, lambda: _table(found), as_json=as_json, nothing="there are no limits")

    run_watched(app, url, Engine.limits, show, watch, as_json=as_json)


def _table(found: list[LimitRecord]) -> Table:
    has_rates, has_batches = any(limit.rate for limit in found), any(limit.batch for limit in found)
    more = [name for name, is_shown in (("rate", has_rates), ("batches", has_batches)) if is_shown]
    headings = ("limit", "value", "in use", "waiting", *more)
    table = new_table(*headings, numbers=("value", "in use", "waiting"), elastic=more, dispensable=("waiting", *more))
    for limit in found:
        rate = (short("" if limit.rate is None else rate_text(limit.rate)),) if has_rates else ()
        batch = (_batch(limit.batch),) if has_batches else ()
        value = shown_limit(limit.value) if limit.batch is None else ""
        table.add_row(limit.name, value, str(limit.in_use), str(limit.waiting), *rate, *batch)
    return table


def _batch(batch: NewBatch | None) -> str:
    return "" if batch is None else f"{batch.size}, or after {duration(batch.wait / 1_000_000)}"


@commands.command("set")
def set_limit(
    name: Name,
    value: Value = None,
    rate: RateOption = None,
    burst: BurstOption = None,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a limit for the whole cluster.

    VALUE is how many tasks may run at once; 0 closes the limit, none removes the bound. Running tasks go on. The change
    holds until the code declares a new value.
    """
    wanted = UNSET if value is None else number_or_none(value, "VALUE")
    new_rate = UNSET if rate is None else _rate(rate, burst)
    if burst is not None and rate is None:
        raise typer.BadParameter("--burst belongs to --rate")

    async def write(engine: Engine) -> LimitRecord:
        await engine.set_limit(name, wanted, rate=new_rate)
        return next(limit for limit in await engine.limits() if limit.name == check_any_limit_name(name))

    changed = run_connected(app, url, write)
    if as_json:
        write_json(changed)
        return
    rated = "" if changed.rate is None else f", {rate_text(changed.rate)}"
    print_line(f"limit {changed.name} is {shown_limit(changed.value)}{rated} now; {changed.in_use} in use")


def _rate(text: str, burst: int | None) -> Rate | None:
    """The rate of a text like `600/1m`."""
    if text == "none":
        return None
    count, slash, per = text.partition("/")
    if not count.isdecimal() or not slash:
        raise typer.BadParameter(f"--rate takes a number and a time, like 600/1m, or none, got {text!r}")
    return Rate(int(count), per=per, burst=1 if burst is None else burst)
