"""Turns causes into text. The text of a cause on all nodes is a clause ("queue mail is paused"); that of a cause on one
node is a predicate that follows the name of the node ("lacks label gpu")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from synergon.explain.explanation import FARTHEST, NEVER, Cause, NodeOutlook, Why
from synergon.explain.requirement_text import natural_text
from synergon.options.durations import rough

SHOWN: Final = 5
"""The maximum number of nodes, servers or causes that a sentence names."""

DEPARTURES: Final = {"drain": "drains", "restart": "is about to restart"}


def clause(cause: Cause, now: datetime) -> str:
    """The clause for a cause. For a cause on one node, the predicate that follows the node's name."""
    return _CLAUSES[cause.why](cause, now)


def names(nodes: Iterable[NodeOutlook]) -> dict[str, str]:
    """A distinct name for each node, by id: the name alone, or with the id if several nodes share it."""
    listed_nodes = list(nodes)
    times = Counter(node.name for node in listed_nodes)
    return {node.id: node.name if times[node.name] == 1 else f"{node.name} ({node.id})" for node in listed_nodes}


def on_node(name: str, outlook: NodeOutlook, now: datetime) -> str:
    """The name of a node and its reasons, for example `node-a is full (gpu 1 of 1 used by task 812)`."""
    causes = [cause for cause in outlook.causes if cause.why in NEVER] or list(outlook.causes)
    return f"{name} {reasons(causes, now)}"


def reasons(causes: Sequence[Cause], now: datetime) -> str:
    """The predicates for all causes on a node, joined. Slots and resources share one predicate."""
    full = _is_full(*(_FULL[cause.why](cause) for cause in causes if cause.why in _FULL))
    return listed(dict.fromkeys(full if cause.why in _FULL else clause(cause, now) for cause in causes))


def _is_full(*of: str) -> str:
    return f"is full ({'; '.join(of)})"


def behind(position: int | None) -> str:
    """The text `, position 7`; empty if the task is the first or its position is unknown."""
    if position is None or position <= 1:
        return ""
    return f", position above {FARTHEST}" if position > FARTHEST else f", position {position}"


def turns(tenant: str | None, ahead: Mapping[str, int]) -> str:
    """The text ` by turns: 2 tasks of its tenant 'acme' and 3 tasks of 2 other tenants go first`; empty if tenants take
    no turns, or none precedes the task."""
    if tenant is None or not ahead:
        return ""
    mine = ahead.get(tenant, 0)
    others = {name: number for name, number in ahead.items() if name != tenant}
    parts = [f"{plural(mine, 'task')} of its tenant {tenant!r}"] if mine else []
    if others:
        who = f"tenant {next(iter(others))!r}" if len(others) == 1 else f"{len(others)} other tenants"
        parts.append(f"{plural(sum(others.values()), 'task')} of {who}")
    return f" by turns: {listed(parts)} {'goes' if sum(ahead.values()) == 1 else 'go'} first"


def listed(parts: Iterable[str]) -> str:
    """The parts, joined as in `a, b and c`."""
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def some(parts: Sequence[str], joint: str = ", ") -> str:
    """The first few parts, joined, with the number of those left out."""
    more = len(parts) - SHOWN
    shown = joint.join(parts[:SHOWN])
    return f"{shown}{joint}and so on for {more} more" if more > 0 else shown


def clock_time(moment: datetime, now: datetime) -> str:
    """The local time, for example `10:02`; with the date if that is not today's."""
    here, today = moment.astimezone(), now.astimezone()
    return f"{here:%H:%M}" if here.date() == today.date() else f"{here:%Y-%m-%d %H:%M}"


def when(moment: datetime | None, now: datetime) -> str:
    """The time until the moment, for example `in 42 s`; `now` if it has come."""
    seconds = 0.0 if moment is None else (moment - now).total_seconds()
    return f"in {rough(seconds)}" if round(seconds) > 0 else "now"


def lasting(moment: datetime | None, now: datetime) -> str:
    """The time since the moment, for example `for 12 s`."""
    return f"for {rough(0.0 if moment is None else max((now - moment).total_seconds(), 0.0))}"


def plural(count: float, noun: str) -> str:
    """The count with the noun in the right number, for example `1 task` or `2 tasks`."""
    number = str(count) if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def _since(cause: Cause, now: datetime) -> str:
    return "" if cause.since is None else f" since {clock_time(cause.since, now)}"


def _usage(cause: Cause) -> str:
    return f"{cause.in_use or 0:g} of {cause.of or 0:g} in use"


def _limit(cause: Cause, _: datetime) -> str:
    if cause.subject.startswith("kind:"):
        kind = cause.subject.removeprefix("kind:")
        return (
            f"kind `{kind}` is closed"
            if cause.of == 0
            else f"{cause.in_use or 0:g} of at most {cause.of or 0:g} tasks of kind `{kind}` run on all nodes together"
        )
    return f"limit {cause.subject} is closed" if cause.of == 0 else f"limit {cause.subject} has {_usage(cause)}"


def _server(cause: Cause, _: datetime) -> str:
    return f"server {cause.subject} is closed" if cause.of == 0 else f"server {cause.subject} has {_usage(cause)}"


def _key_queue(cause: Cause, _: datetime) -> str:
    if cause.of is None:
        return f"others go first in {_key_queue_name(cause)}"
    if cause.of == 0:
        return f"{_key_queue_name(cause)} is closed"
    return f"{_key_queue_name(cause)} is full: at most {cause.of:g} at once"


def _key_queue_name(cause: Cause) -> str:
    """The name of a key queue in a sentence. A kind with a rate but without `limit_by` has one key queue for all its
    tasks."""
    return f"the key queue of its limit key {cause.subject!r}" if cause.subject else "the key queue of its kind"


def _batch(cause: Cause, now: datetime) -> str:
    if cause.until is None:
        return "its batch can start, and runs when the first of its tasks is claimed"
    filled = f"its batch has {cause.in_use or 0:g} of {cause.of or 0:g} tasks"
    return f"{filled}, and starts {when(cause.until, now)} at the latest"


def _slots(cause: Cause) -> str:
    return f"{cause.in_use or 0:g} of {cause.of or 0:g} slots in use"


def _threads(cause: Cause) -> str:
    return f"{cause.in_use or 0:g} of {cause.of or 0:g} threads in use"


def _resource(cause: Cause) -> str:
    name = cause.subject
    in_use, of, needed = (natural_text(name, amount or 0) for amount in (cause.in_use, cause.of, cause.needed))
    holders = f" by {_tasks(cause.tasks)}" if cause.tasks else ""
    wanted = "" if (cause.in_use or 0) >= (cause.of or 0) else f", and it needs {needed}"
    return f"{name} {in_use} of {of} used{holders}{wanted}"


def _tasks(ids: Sequence[int]) -> str:
    return f"task {ids[0]}" if len(ids) == 1 else f"tasks {listed(str(task_id) for task_id in ids)}"


def _runs_at_most(cause: Cause) -> str:
    return f"runs {cause.in_use or 0:g} of at most {cause.of or 0:g}"


def _too_small(cause: Cause, _: datetime) -> str:
    of, needed = (natural_text(cause.subject, amount or 0) for amount in (cause.of, cause.needed))
    return f"is too small (it needs {cause.subject} {needed}, and the node has {of} in total)"


_FULL: Final[dict[Why, Callable[[Cause], str]]] = {Why.SLOTS: _slots, Why.THREADS: _threads, Why.RESOURCE: _resource}
"""The causes for which `reasons` writes "is full", with the functions that make the details."""

_CLAUSES: Final[dict[Why, Callable[[Cause, datetime], str]]] = {
    Why.DELAYED: lambda cause, now: f"its time comes {when(cause.until, now)}",
    Why.RETRYING: lambda cause, now: (
        f"retry {cause.in_use:g}{f' of {cause.of:g}' if cause.of is not None else ''} "
        f"{when(cause.until, now)} after {cause.subject}"
    ),
    Why.SERVER_FAILED: lambda cause, now: (
        f"it runs again {when(cause.until, now)}: server {cause.subject} failed it ({cause.in_use:g} of {cause.of:g} "
        "times at no cost), and it has tried all servers in service"
    ),
    Why.SNOOZED: lambda cause, now: f"its function asked to be run again {when(cause.until, now)}",
    Why.RATE: lambda cause, now: f"it may start {when(cause.until, now)} by the rate of {_key_queue_name(cause)}",
    Why.DUE: lambda cause, now: f"due {lasting(cause.since, now)}, and the next check by a node makes it ready",
    Why.EXPIRED: lambda cause, now: f"expired {lasting(cause.since, now)}, and the next check by a node ends it",
    Why.KEY_QUEUE: _key_queue,
    Why.DEPENDENCY: lambda cause, _: (
        f"task {cause.subject}" + (f" ({cause.kind}, {cause.state})" if cause.kind else "")
    ),
    Why.BATCH: _batch,
    Why.PAUSED: lambda cause, now: f"queue {cause.subject} is paused{_since(cause, now)}",
    Why.UNKNOWN_KIND: lambda cause, _: f"no live node knows kind `{cause.subject}`",
    Why.LIMIT: _limit,
    Why.LIMIT_RATE: lambda cause, now: f"rate {cause.subject}: {cause.rate}; free {when(cause.until, now)}",
    Why.SERVER: _server,
    Why.BACKED_OFF: lambda cause, now: (
        f"server {cause.subject} backs off until {clock_time(cause.until or now, now)} ({when(cause.until, now)})"
    ),
    Why.ON_TRIAL: lambda cause, _: f"server {cause.subject} is on trial: one at a time",
    Why.PROBED: lambda cause, now: (
        f"server {cause.subject} is out of service until a probe succeeds (next one {when(cause.until, now)})"
    ),
    Why.REMOVED: lambda cause, _: f"server {cause.subject} was removed",
    Why.NO_SERVERS: lambda cause, _: f"provider {cause.subject} has no servers",
    Why.SILENT: lambda cause, now: f"has not been heard from {lasting(cause.since, now)}",
    Why.NO_STATUS: lambda _cause, _now: "has published no status yet",
    Why.CORDONED: lambda cause, now: DEPARTURES.get(cause.subject, f"is cordoned{_since(cause, now)}"),
    Why.STOPPING: lambda _cause, _now: "is stopping",
    Why.OTHER_QUEUES: lambda cause, _: f"does not serve queue {cause.subject}",
    Why.LABEL_MISSING: lambda cause, _: f"lacks label {cause.subject}",
    Why.LABEL_FORBIDDEN: lambda cause, _: f"has the forbidden label {cause.subject}",
    Why.TOO_SMALL: _too_small,
    Why.REFUSED: lambda cause, _: f"has refused it ({cause.subject})",
    Why.SLOTS: lambda cause, _: _is_full(_slots(cause)),
    Why.MAX_RUNNING: lambda cause, _: f"{_runs_at_most(cause)} of the kind",
    Why.QUEUE_BOUND: lambda cause, _: f"{_runs_at_most(cause)} of queue {cause.subject}",
    Why.PROVIDER_BOUND: lambda cause, _: f"{_runs_at_most(cause)} of provider {cause.subject}",
    Why.PROCESSES: lambda _cause, _now: "has no free child process",
    Why.THREADS: lambda cause, _: _is_full(_threads(cause)),
    Why.OCCUPIED: lambda _cause, _now: "runs other tasks, and this suspect must run alone",
    Why.RESOURCE: lambda cause, _: _is_full(_resource(cause)),
    Why.RESERVED: lambda cause, _: f"has reserved capacity for task {cause.subject}",
    Why.WILL_RESERVE: lambda cause, _: f"is about to reserve capacity for task {cause.subject}",
    Why.UNYIELDING: lambda cause, now: (
        f"has asked others in vain to yield to `{cause.subject}`, and asks again {when(cause.until, now)}"
    ),
    Why.NOT_YET_ACCEPTED: lambda _cause, _now: "asks can_accept before it claims one",
    Why.REJECTED: lambda cause, now: f"has rejected it, and asks again {when(cause.until, now)}",
    Why.BEHIND: lambda _cause, _now: "has capacity, and other tasks go first",
}
