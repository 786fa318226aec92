"""`synergon status`: the state of the cluster on one screen, or as JSON for alarms and autoscalers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer
from rich.text import Text

from synergon.cli import exit_codes
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import new_table, plural, print_line, print_table, short, write_json
from synergon.cli.queues import age_of
from synergon.engine import Engine
from synergon.model.cluster_status import ClusterStatus, WorkerStatus
from synergon.model.lifecycle import State
from synergon.options.durations import rough

SHOWN_WORKERS: Final = 5
SHOWN_QUEUES: Final = 7
SHOWN_PROBLEMS: Final = 4
"""How many problems are shown, so that a screen of 24 lines holds them with the headings and the failures."""
DEPTH: Final = (State.READY, State.RUNNING, State.SCHEDULED, State.WAITING)


def status(app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show workers, queues, failures and problems on one screen.

    The exit code is 1 if there is a problem: a dead or silent worker, ready tasks without a worker, an overdue task or
    a suspended server. With --json one document, in which durations are in seconds.
    """
    found = run_connected(app, url, Engine.status)
    if as_json:
        write_json(_document(found))
    else:
        _print(found)
    if found.problems:
        raise typer.Exit(exit_codes.FAILED)


def _document(found: ClusterStatus) -> dict[str, Any]:
    """The status with sums, so that an alarm needs no arithmetic."""
    document = found.as_dict()
    for queue, written in zip(found.queues, document["queues"], strict=True):
        written["oldest_ready_seconds"] = queue.oldest_ready_seconds
    alive = [worker for worker in found.workers if worker.is_alive]
    totals = {state.value: sum(queue.counts.get(state, 0) for queue in found.queues) for state in DEPTH}
    ages = [queue.oldest_ready_seconds for queue in found.queues if queue.oldest_ready_seconds is not None]
    return {
        "problems": list(found.problems),
        "workers_alive": len(alive),
        "slots": sum(worker.concurrency for worker in alive),
        **totals,
        "oldest_ready_seconds": max(ages, default=None),
        "failed_last_hour": sum(found.failures_last_hour.values()),
        **document,
    }


def _print(found: ClusterStatus) -> None:
    print_line(f"store    {found.store}")
    alive = sum(worker.is_alive for worker in found.workers)
    print_line(f"workers  {plural(alive, 'live worker')}" + _more(len(found.workers), SHOWN_WORKERS))
    if found.workers:
        headings = ("worker", "host", "running", "")
        table = new_table(*headings, numbers=("running",), elastic=("host", ""), dispensable=("host",))
        for worker in _in_trouble_first(found.workers):
            running = f"{worker.running} of {worker.concurrency}"
            table.add_row(worker.name, short(worker.host), running, _state(worker))
        print_table(table)
    print_line(f"queues   {len(found.queues)}" + _more(len(found.queues), SHOWN_QUEUES))
    if found.queues:
        table = new_table(
            "queue",
            *DEPTH,
            "oldest ready",
            numbers=DEPTH,
            elastic=("oldest ready",),
            dispensable=("waiting", "scheduled"),
        )
        by_age = sorted(found.queues, key=lambda queue: (-(queue.oldest_ready_seconds or 0), queue.name))
        for queue in by_age[:SHOWN_QUEUES]:
            age = "paused" if queue.is_paused else age_of(queue)
            table.add_row(queue.name, *(str(queue.counts.get(state, 0)) for state in DEPTH), short(age))
        print_table(table)
    print_line(f"failed   {_failures(found)}")
    for problem in found.problems[:SHOWN_PROBLEMS]:
        print_line(Text("problem  ", style="bold red").append(problem, style="not bold default"))
    if len(found.problems) > SHOWN_PROBLEMS:
        print_line(f"problem  and {len(found.problems) - SHOWN_PROBLEMS} more; see `synergon doctor`")


def _more(number: int, shown: int) -> str:
    return f", of which {shown} are shown" if number > shown else ""


def _in_trouble_first(workers: tuple[WorkerStatus, ...]) -> Iterator[WorkerStatus]:
    ordered = sorted(workers, key=lambda worker: (worker.is_alive, -worker.silent_seconds, worker.name))
    yield from ordered[:SHOWN_WORKERS]


def _state(worker: WorkerStatus) -> Text:
    if not worker.is_alive:
        return Text("dead", style="red")
    if worker.silent_seconds > worker.lease_seconds / 2:
        return Text(f"silent for {rough(worker.silent_seconds)}", style="yellow")
    return Text("cordoned", style="yellow") if worker.is_cordoned else Text("")


def _failures(found: ClusterStatus) -> str:
    total = sum(found.failures_last_hour.values())
    if not total:
        return "none in the last hour"
    kinds = list(found.failures_last_hour.items())
    named = ", ".join(f"{number} {kind}" for kind, number in kinds[:3])
    return f"{total} in the last hour: {named}{', ...' if len(kinds) > 3 else ''}"
