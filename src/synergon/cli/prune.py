"""`synergon prune`: deletes ended tasks that are old enough."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import plural, print_line, write_json


def prune(
    succeeded: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete tasks that succeeded longer ago, like 12h or 7d.")
    ] = None,
    failed: Annotated[str | None, typer.Option(metavar="AGE", help="Delete tasks that failed longer ago.")] = None,
    cancelled: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete tasks that were cancelled longer ago.")
    ] = None,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old ended tasks now.

    Workers do this by themselves, about once a minute. Without an age the retention of the engine holds; with one, only
    the named states are pruned.
    """

    async def run() -> int:
        async with connected(app, url) as engine:
            return await engine.prune(succeeded=succeeded, failed=failed, cancelled=cancelled)

    deleted = asyncio.run(run())
    if as_json:
        write_json({"deleted": deleted})
    else:
        print_line(f"{plural(deleted, 'task')} deleted")
