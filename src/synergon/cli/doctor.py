"""`synergon doctor`: prints the effective configuration and the problems found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli import exit_codes
from synergon.cli.database import AppOption, JsonOption, UrlOption, find_target
from synergon.cli.nodes import threads_text
from synergon.cli.output import duration, new_facts, new_table, plural, print_line, print_table, short, size, write_json
from synergon.options.settings import queue_words
from synergon.policies import Retention

if TYPE_CHECKING:
    from synergon.doctor.diagnosis import Diagnosis


def doctor(app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show the effective configuration, and find problems.

    Checks the database, the settings and their sources, the tasks of the app and the live nodes. Changes nothing.
    """
    from synergon.doctor.diagnosis import diagnose  # with the drivers and psutil, which no other command needs

    target = find_target(app, url)
    found = asyncio.run(diagnose(target.engine, app=target.app, chosen_by=target.chosen_by))
    if as_json:
        write_json(found)
    else:
        _print(found)
    if not found.is_healthy:
        raise typer.Exit(exit_codes.FAILED)


def _print(found: Diagnosis) -> None:
    _section("versions", _facts(found.versions.items()))
    _section("database", _facts(_database(found)))
    _section("settings", _settings(found))
    if found.kinds is not None:
        _section("kinds", _kinds(found) if found.kinds else "none; import the modules that define them in the app")
    _section("nodes", _nodes(found) if found.nodes else "none")
    _print_problems(found)


def _section(heading: str, content: Table | str) -> None:
    print_line(Text(heading, style="bold"))
    if isinstance(content, str):
        print_line(content)
    else:
        print_table(content)
    print_line()


def _facts(rows: Any) -> Table:
    table = new_facts()
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _database(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "url", found.url
    yield "chosen by", found.chosen_by if found.app is None else f"{found.chosen_by} ({found.app})"
    for name, value in found.store.items():
        yield name, value if name != "schema version" else f"{value} (this code: {found.schema_version_wanted})"
    if found.clock_ahead_seconds is not None:
        direction = "ahead of" if found.clock_ahead_seconds > 0 else "behind"
        yield "clock offset", f"{duration(abs(found.clock_ahead_seconds))} {direction} the host's"
    if found.disk_free_bytes is not None:
        yield "disk", f"{size(found.disk_free_bytes)} free"


def _settings(found: Diagnosis) -> Table:
    table = new_table("name", "value", "from", elastic=("value",), dispensable=("from",))
    for name, setting in found.settings.items():
        table.add_row(name, _readable(name, setting.value), Text(setting.source, style="dim"))
    return table


def _readable(name: str, value: Any) -> str:
    if isinstance(value, Retention):
        ages = (f"{state} {_readable('age', getattr(value, state))}" for state in ("succeeded", "failed", "cancelled"))
        return ", ".join(ages)
    if name == "queues":
        return ", ".join(queue_words(value)) if value is not None else "all"
    if name == "sweep" and value is None:
        return "automatic"
    return duration(value) if value is None or isinstance(value, float) else str(value)


def _kinds(found: Diagnosis) -> Table:
    table = new_table(
        "kind",
        "queue",
        "runs in",
        "attempts",
        "timeout",
        "function",
        numbers=("attempts",),
        elastic=("function",),
        dispensable=("runs in", "attempts", "function", "timeout", "queue"),
    )
    for kind in found.kinds or ():
        table.add_row(
            kind.kind,
            kind.queue,
            kind.runs_in,
            str(kind.attempts),
            duration(kind.timeout),
            short(kind.function),
        )
    return table


def _nodes(found: Diagnosis) -> Table:
    table = new_table(
        *("node", "name", "host", "pid", "kinds", "threads", "lease left"),
        numbers=("pid", "kinds", "threads"),
        elastic=("host",),
        dispensable=("threads", "pid", "host", "kinds", "lease left", "node"),
    )
    for node in found.nodes:
        lease = duration(node.lease_remaining) if node.lease_remaining > 0 else Text("expired", style="red")
        process = node.process
        table.add_row(
            node.id,
            node.name,
            short(process.host),
            str(process.pid),
            str(len(node.kinds)),
            threads_text(node.state),
            lease,
        )
    return table


def _print_problems(found: Diagnosis) -> None:
    if found.is_healthy:
        print_line(Text("no problems found", style="green"))
        return
    print_line(Text(plural(len(found.problems), "problem") + " found", style="bold red"))
    for finding in found.problems:
        print_line(f"- {finding.problem}")
        print_line(f"  {finding.advice}")
