"""`synergon audit`: lists operator actions and their outcomes."""

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

LimitOption = Annotated[int, typer.Option(metavar="NUMBER", min=1, max=10_000, help="How many to list at most.")]


def audit(limit: LimitOption = 50, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List operator actions, newest first.

    Shows who requested what and when, and the outcome: pauses, limits, servers, cancels, and actions on nodes. With
    --json one action per line.
    """

    async def read() -> tuple[list[AuditRecord], datetime]:
        async with connected(app, url) as engine:
            return await engine.audit(limit), to_datetime(await engine.store.now())

    found, now = asyncio.run(read())
    show_list(found, lambda: _table(found, now), as_json=as_json, nothing="there are no operator actions yet")


def _table(found: list[AuditRecord], now: datetime) -> Table:
    table = new_table("when", "who", "action", "subject", "outcome", elastic=("who", "subject", "outcome"))
    for entry in found:
        outcome = short(entry.outcome) if entry.outcome is not None else Text("pending", style="yellow")
        table.add_row(relative(entry.requested_at, now), short(entry.who), entry.verb, short(entry.subject), outcome)
    return table
