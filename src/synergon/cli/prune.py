"""`synergon prune`: deletes ended tasks that are old enough."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import duration, plural, print_line, write_json
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.policies import Retention


def prune(
    succeeded: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete tasks that succeeded longer ago, like 12h or 7d.")
    ] = None,
    failed: Annotated[str | None, typer.Option(metavar="AGE", help="Delete tasks that failed longer ago.")] = None,
    cancelled: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete tasks that were cancelled longer ago.")
    ] = None,
    statistics: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --set: how long workers keep statistics.")
    ] = None,
    store: Annotated[
        bool, typer.Option("--set", help="Store the ages as the retention of all workers, and delete nothing now.")
    ] = False,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old ended tasks now.

    Workers do this by themselves, about once a minute. Without an age the retention of the cluster holds; with one,
    only the named states are pruned. With --set the ages become the retention, for which an age may also be none: for
    ever. What has no age keeps its own.
    """
    ages = {"succeeded": succeeded, "failed": failed, "cancelled": cancelled, "statistics": statistics}
    given = {state: age for state, age in ages.items() if age is not None}
    if store:
        _set_retention(given, app, url, as_json=as_json)
        return
    if statistics is not None:
        raise OptionError("--statistics needs --set: workers delete old statistics by themselves")

    async def run(engine: Engine) -> int:
        return await engine.prune(**given)

    deleted = run_connected(app, url, run)
    if as_json:
        write_json({"deleted": deleted})
    else:
        print_line(f"{plural(deleted, 'task')} deleted")


def _set_retention(given: dict[str, str], app: str | None, url: str | None, *, as_json: bool) -> None:
    if not given:
        raise OptionError("--set needs an age: --succeeded, --failed, --cancelled or --statistics")

    async def run(engine: Engine) -> Retention:
        ages = {state: None if age == "none" else age for state, age in given.items()}
        await engine.set_retention(replace(await engine.retention(), **ages))
        return await engine.retention()

    stored = asdict(run_connected(app, url, run))
    if as_json:
        write_json({f"{state}_seconds": seconds for state, seconds in stored.items()})
    else:
        ages = (f"{state} {'for ever' if age is None else duration(age)}" for state, age in stored.items())
        print_line(f"all workers keep: {', '.join(ages)}")
