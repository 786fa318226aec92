"""`synergon audit`: lists operator actions and their outcomes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.database import AppOption, JsonOption, UrlOption
from synergon.cli.output import new_table, relative, short, show_list
from synergon.cli.watch import WatchOption, run_watched
from synergon.engine import Engine
from synergon.model.operator_actions import AuditRecord
from synergon.model.record import to_datetime

LimitOption = Annotated[int, typer.Option(metavar="NUMBER", min=1, max=10_000, help="How many to list at most.")]


def audit(
    limit: LimitOption = 50,
    app: AppOption = None,
    url: UrlOption = None,
    watch: WatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """List operator actions, newest first.

    Shows who requested what and when, and the outcome: pauses, limits, servers, cancels, and actions on nodes. With
    --json one action per line.
    """

    async def read(engine: Engine) -> tuple[list[AuditRecord], datetime]:
        return await engine.audit(limit), to_datetime(await engine._store.now())

    def show(found: tuple[list[AuditRecord], datetime]) -> None:
        show_list(found[0], lambda: _table(*found), as_json=as_json, nothing="there are no operator actions yet")

    run_watched(app, url, read, show, watch, as_json=as_json)


def _table(found: list[AuditRecord], now: datetime) -> Table:
    table = new_table("when", "who", "action", "subject", "outcome", elastic=("outcome",), dispensable=("who",))
    for entry in found:
        outcome = short(_outcome(entry)) if entry.outcome is not None else Text("pending", style="yellow")
        table.add_row(relative(entry.requested_at, now), entry.who, entry.verb, _subject(entry), outcome)
    return table


def _outcome(entry: AuditRecord) -> str:
    """The outcome, and the reason that the operator gave."""
    return f"{entry.outcome}" if entry.why is None else f"{entry.outcome} (why: {entry.why})"


def _subject(entry: AuditRecord) -> str:
    """The name of a node, which people know better than its id; --json has both."""
    return entry.node_name or entry.subject
