"""`synergon audit`: what operators told the engine to do, and what came of it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import new_table, relative, short, show_list
from synergon.model.operator_actions import AuditRecord
from synergon.model.record import to_datetime

LimitOption = Annotated[int, typer.Option(metavar="NUMBER", min=1, max=10_000, help="How many at the most.")]


def audit(limit: LimitOption = 50, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List what operators have ordered, newest first.

    Who ordered what and when, and what came of it: pauses, limits, servers, cancels, and what nodes were told. With
    --json one order per line.
    """

    async def read() -> tuple[list[AuditRecord], datetime]:
        async with connected(app, url) as engine:
            return await engine.audit(limit), to_datetime(await engine.store.now())

    found, now = asyncio.run(read())
    show_list(found, lambda: _table(found, now), as_json=as_json, nothing="nothing was ordered yet")


def _table(found: list[AuditRecord], now: datetime) -> Table:
    table = new_table("when", "who", "order", "subject", "outcome", elastic=("who", "subject", "outcome"))
    for order in found:
        outcome = short(order.outcome) if order.outcome is not None else Text("not done yet", style="yellow")
        table.add_row(relative(order.requested_at, now), short(order.who), order.verb, short(order.subject), outcome)
    return table
