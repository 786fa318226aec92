"""Prints one task in full: facts, attempts, arguments, result and errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec
from rich.table import Table
from rich.text import Text

from synergon.cli.output import (
    absolute,
    duration,
    new_facts,
    new_table,
    print_line,
    print_lines,
    print_table,
    relative,
    short,
    state_text,
)
from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import State
from synergon.model.outcomes import ErrorRecord
from synergon.model.task_records import TaskRecord

ONE_LINE: Final = 60
"""JSON values up to this length are printed among the facts, longer ones in blocks of their own."""


def print_details(task: TaskRecord, now: datetime) -> None:
    """Print the facts first, then the attempts if there were others than one success, arguments, result and errors."""
    print_line(_title(task))
    facts = new_facts()
    for name, value in _facts(task, now):
        facts.add_row(name, Text(value))
    documents = dict(_documents(task))
    for name in [name for name, text in documents.items() if len(text) <= ONE_LINE]:
        facts.add_row(name, Text(documents.pop(name)))
    print_table(facts)
    if task.ended_attempts:
        print_line()
        print_table(_attempts(task))
    for name, text in documents.items():
        _print_block(Text(name, style="bold"), msgspec.json.format(text, indent=2))
    for error in task.errors:
        _print_error(error, now)


def _attempts(task: TaskRecord) -> Table:
    """The latest attempts, one per line. The claim number distinguishes attempts that were not counted."""
    has_servers = any(attempt.server is not None for attempt in task.attempts_made)
    headings = ("claim", "started", "took", "outcome", "node", *(("server",) if has_servers else ()))
    table = new_table(
        *headings, numbers=("claim", "took"), elastic=("outcome",), dispensable=("started", "took", "server")
    )
    for attempt in task.attempts_made:
        started = attempt.started_at
        cells: list[str | Text] = [
            str(attempt.claim_no),
            "" if started is None else started.astimezone().isoformat(sep=" ", timespec="seconds")[:19],
            "" if attempt.seconds is None else duration(attempt.seconds),
            short(_outcome(attempt)),
            _node_name(attempt.node_name, attempt.host, attempt.node_id),
        ]
        table.add_row(*cells, *([attempt.server or ""] if has_servers else []))
    return table


def _outcome(attempt: AttemptRecord) -> str:
    if attempt.outcome is None:
        return "running"
    has_other_error = attempt.error is not None and attempt.error.lower() != attempt.outcome
    return f"{attempt.outcome}: {attempt.error}" if has_other_error else attempt.outcome


def _title(task: TaskRecord) -> Text:
    title = Text(f"task {task.id}  {task.kind}  ", style="bold").append_text(state_text(task.state))
    if task.reason is not None and task.state is not State.CANCELLED:
        title.append(f" ({task.reason})")
    return title


def _facts(task: TaskRecord, now: datetime) -> Iterator[tuple[str, str]]:
    if task.title is not None:
        yield "title", task.title
    yield "queue", task.queue
    yield "priority", str(task.priority)
    if task.units > 1:
        yield "units", f"{task.units}, for the rates of its limits"
    yield "attempts", f"{task.attempts} of {task.max_attempts}" if task.max_attempts is not None else str(task.attempts)
    if task.crashes:
        yield "crashes", str(task.crashes)
    if task.owner_deaths:
        yield "deaths of its nodes", str(task.owner_deaths)
    if task.is_suspect and not task.state.is_final:
        yield "suspect", "its next attempt runs isolated"
    moments = {
        "enqueued": task.enqueued_at,
        "due": task.run_at if task.run_at != task.enqueued_at else None,
        "started": task.started_at,
        "finished": task.finished_at,
        "expires": task.expires_at,
    }
    yield from ((name, absolute(moment, now)) for name, moment in moments.items() if moment is not None)
    if task.node_id is not None:
        name = _node_name(task.node_name, task.host)
        yield "node", f"{task.node_id} ({name})" if name else task.node_id
    yield from _relations(task)
    if task.cancel_requested and not task.state.is_final:
        yield "cancel", "requested; the task function has not ended yet"
    if task.overdue:
        yield "overdue", "the task function exceeded its timeout and could not be stopped"
    if task.progress is not None:
        yield "progress", f"{task.progress.fraction:.0%} {task.progress.message}".strip()
    if task.unreadable:
        yield "unreadable", ", ".join(task.unreadable)
    if task.key is not None:
        yield "key", task.key
    if task.tags:
        yield "tags", ", ".join(task.tags)


def _relations(task: TaskRecord) -> Iterator[tuple[str, str]]:
    """The server, key queue and group of the task, and whether it waits for others."""
    if task.schedule is not None and task.scheduled_for is not None:
        yield "schedule", f"{task.schedule}, for {task.scheduled_for.astimezone().isoformat(sep=' ')}"
    if task.server is not None:
        yield "server", task.server
    if task.is_command:
        yield "command", f"for {task.target}" if task.target is not None else "for any server"
    if task.limit_key:
        yield "limit key", task.limit_key
    if task.fair_key is not None:
        yield "tenant", task.fair_key
    if task.group_id is not None:
        yield "flow or group", str(task.group_id)
    if task.parent_id is not None:
        yield "created by", f"task {task.parent_id}"
    if task.is_dependent:
        yield "waits for", "tasks that it depends on"


def _node_name(node_name: str | None, host: str | None, node_id: str | None = None) -> str:
    """The name of a node and its host; its id if the name is not known."""
    if node_name is None:
        return node_id or ""
    return node_name if host is None or host in node_name else f"{node_name} on {host}"


def _documents(task: TaskRecord) -> Iterator[tuple[str, str]]:
    """The JSON values of the task, each as one line."""
    values: dict[str, Any] = {
        "arguments": task.payload,
        "options": task.overrides,
        "meta": task.meta or None,
        "result": task.result_json,
    }
    for name, value in values.items():
        if value is not None:
            yield name, msgspec.json.format(msgspec.json.encode(value).decode(), indent=0)


def _print_error(error: ErrorRecord, now: datetime) -> None:
    attempt = f"attempt {error.attempt}: " if error.attempt else ""
    when = f" ({relative(error.at, now)})" if error.at is not None else ""
    where = "" if error.node_name is None else f" on {_node_name(error.node_name, error.host)}"
    _print_block(
        Text(f"{attempt}{error.type}{where}{when}", style="bold red"), error.traceback.rstrip() or error.message
    )


def _print_block(heading: Text, text: str) -> None:
    print_line()
    print_line(heading)
    print_lines(text)
