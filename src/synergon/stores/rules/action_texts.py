"""Values and texts of operator actions: parses the value of an action, and makes the text of its outcome for the
audit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from synergon.errors import OptionError
from synergon.model.lifecycle import State
from synergon.model.limits import LimitChange, NewRate, NewServer
from synergon.model.operator_actions import REJECTED, AuditRecord, NewAction, Verb
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import (
    MAP_SUCCEEDED,
    NEEDED,
    Cutoffs,
    Extension,
    MetaChange,
    Moved,
    Reprioritizing,
    Rescheduling,
    StoredRetention,
)
from synergon.options.addresses import normal_address
from synergon.options.durations import LONGEST_SECONDS, microseconds, rough
from synergon.policies import HIGHEST_PRIORITY, LOWEST_PRIORITY, rate_text

if TYPE_CHECKING:  # what producers import is loaded quickly
    from synergon.stores.rows import LimitRow

CORDONING: Final[frozenset[Verb]] = frozenset({"cordon", "drain", "restart"})
"""Operator actions that cordon the named node at once, in the transaction that records the action."""
ENDED_BEFORE: Final = "ended before"
CANCEL_REQUESTED: Final = "cancel requested"
HELD_KEY: Final = "task {} is live and holds its key"


MOST_SHOWN: Final = 20
"""How many changed servers the outcome of an action names."""

NO_NODE: Final = "no node of that id"
DEAD_NODE: Final = "its lease is over"
NO_LIMIT: Final = "no limit of that name"
NO_PROVIDER: Final = "no provider of that name"


class Rejected(Exception):
    """An operator action that cannot be carried out. The message says why. The action changes nothing, and the audit
    records it with the message."""

    @property
    def outcome(self) -> str:
        """The outcome text for the audit."""
        return f"{REJECTED}{self}"


def check(action: NewAction) -> None:
    """Raise `Rejected` if the action comes with its own rejection."""
    if action.rejection is not None:
        raise Rejected(action.rejection)


def limit_change(action: NewAction) -> LimitChange:
    """The change of a limit: a number, null for no limit, or an object with a new value or rate. Raises `Rejected` if
    it is not valid."""
    if not isinstance(action.value, dict):
        return LimitChange(value=_number(action.value, "a limit"))
    try:
        change = msgspec.convert(action.value, LimitChange)
    except msgspec.ValidationError as error:
        raise Rejected(f"a change of a limit has a value or a rate, got {action.value!r} ({error})") from error
    if change.rate and action.subject.startswith("kind:"):
        raise Rejected("the limit of a kind counts running tasks; the rate of a kind is an option of the kind")
    return change


def changed_pool(action: NewAction, pool: Sequence[NewServer]) -> list[NewServer]:
    """The pool of a provider after the action. Raises `Rejected` if it is not valid."""
    if action.verb == "set_servers":
        return servers(action)
    value = action.value
    if action.verb == "add_server" and not (isinstance(value, list | tuple) and len(value) == 2):
        raise Rejected(f"a new server is [address, capacity], got {value!r}")
    address = _address(value[0] if action.verb == "add_server" else value)
    others = [server for server in pool if server.address != address]
    if action.verb == "add_server":
        return [*others, NewServer(address=address, capacity=_number(value[1], "a capacity"))]
    if len(others) == len(pool):
        listed = ", ".join(server.address for server in pool) or "none"
        raise Rejected(f"provider {action.subject} has no server {address}; it has {listed}")
    return others if action.verb == "remove_server" else [*others, NewServer(address=address, capacity=0)]


def servers(action: NewAction) -> list[NewServer]:
    """The new pool of a provider. Raises `Rejected` if it is not valid."""
    value = action.value
    if not isinstance(value, list | tuple) or not all(isinstance(one, list | tuple) and len(one) == 2 for one in value):
        raise Rejected(f"servers are [[address, capacity], ...], got {value!r}")
    pool = [NewServer(address=_address(one[0]), capacity=_number(one[1], "a capacity")) for one in value]
    if len({server.address for server in pool}) < len(pool):
        raise Rejected("two servers have the same address")
    return pool


def retention(action: NewAction) -> Cutoffs:
    """The new retention. Raises `Rejected` if it is not valid."""
    value = action.value
    if not isinstance(value, list | tuple) or len(value) != 4:
        raise Rejected(f"a retention is [succeeded, failed, cancelled, statistics] in microseconds, got {value!r}")
    ages = [_number(age, "an age in microseconds") for age in value]
    if any(age > microseconds(LONGEST_SECONDS) for age in ages if age is not None):
        raise Rejected(f"a retention is at most 100 years, got {value!r}")
    succeeded, failed, cancelled, statistics = ages
    return Cutoffs(succeeded=succeeded, failed=failed, cancelled=cancelled, statistics=statistics)


def task_id(action: NewAction) -> int:
    """The id of the task that the action is about. Raises `Rejected` if it is not a number."""
    try:
        return int(action.subject)
    except ValueError:
        raise Rejected(f"{action.subject!r} is no id of a task") from None


def why(action: NewAction) -> str | None:
    """The reason that the operator gives for a cancellation. Raises `Rejected` if it is not a text."""
    if action.value is not None and not isinstance(action.value, str):
        raise Rejected(f"the reason of a cancel is a text, got {action.value!r}")
    return action.value


def rescheduling(action: NewAction) -> Rescheduling:
    """The new due time of the task. Raises `Rejected` if it is neither a delay nor a moment."""
    given = action.value if isinstance(action.value, dict) else {}
    if len(given) != 1 or not given.keys() <= {"delay", "run_at"} or not all(map(_is_whole, given.values())):
        raise Rejected(f"a task is due after a delay or at a moment, in microseconds, got {action.value!r}")
    return Rescheduling(id=task_id(action), delay=given.get("delay"), run_at=given.get("run_at"))


def reprioritizing(action: NewAction) -> Reprioritizing:
    """The new priority of the task. Raises `Rejected` if it is not a number."""
    if not _is_whole(action.value) or not LOWEST_PRIORITY <= action.value <= HIGHEST_PRIORITY:
        raise Rejected(f"a priority is a whole number of 64 bits, got {action.value!r}")
    return Reprioritizing(id=task_id(action), priority=action.value)


def extension(action: NewAction) -> Extension:
    """How much more time the task gets. Raises `Rejected` if it is not a number of microseconds."""
    if not _is_whole(action.value) or not 0 < action.value <= microseconds(LONGEST_SECONDS):
        raise Rejected(f"an extension is a number of microseconds, up to 100 years, got {action.value!r}")
    return Extension(id=task_id(action), extra=action.value)


def meta_change(action: NewAction) -> MetaChange:
    """The new values of the task's metadata. Raises `Rejected` if they are not an object."""
    if not isinstance(action.value, dict):
        raise Rejected(f"metadata has values by name, got {action.value!r}")
    return MetaChange(id=task_id(action), values=action.value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any, what: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise Rejected(f"{what} is a whole number from 0 on, or null for no limit, got {value!r}")
    number: int | None = value
    return number


def _address(value: Any) -> str:
    try:
        return normal_address(value)
    except OptionError as error:
        raise Rejected(str(error)) from error


# ---------------------------------------------------------------- outcome texts


def pause_outcome(*, done: bool) -> str:
    """The outcome text of a pause. `done`: the queue was not paused before."""
    return "paused" if done else "was paused already"


def resume_outcome(*, done: bool) -> str:
    """The outcome text of a resume. `done`: the queue was paused before."""
    return "resumed" if done else "was not paused"


def limit_outcome(name: str, before: LimitRow | None, change: LimitChange, *, done: bool) -> str:
    """The outcome text of a changed limit, with what it was before. Raises `Rejected` if it was not changed."""
    if not done or before is None:
        raise Rejected(NO_LIMIT)
    parts = []
    if change.value is not UNSET:
        parts.append(f"limit {name} is {_amount(change.value)} now, was {_amount(before.value)}")
    if change.rate is not UNSET:
        parts.append(f"the rate of {name} is {_rate(change.rate)} now, was {_rate(before.rate)}")
    return ", ".join(parts)


def _amount(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def _rate(rate: NewRate | None) -> str:
    return "unlimited" if rate is None else rate_text(rate)


def servers_outcome(name: str, before: Sequence[NewServer], after: Sequence[NewServer]) -> str:
    """The outcome text of a changed pool, with the old capacities of the servers that have changed."""
    old = {server.address: _amount(server.capacity) for server in before}
    new = {server.address: _amount(server.capacity) for server in after}
    changes = [
        *(f"{address} removed, was {old[address]}" for address in old if address not in new),
        *(f"{address} added with {new[address]}" for address in sorted(new) if address not in old),
        *(
            f"{address} {old[address]} → {new[address]}"
            for address in old
            if new.get(address, old[address]) != old[address]
        ),
    ]
    shown = "; ".join(changes[:MOST_SHOWN]) or "nothing has changed"
    more = f"; and {len(changes) - MOST_SHOWN} more" if len(changes) > MOST_SHOWN else ""
    return f"provider {name} has {len(new)} server{'' if len(new) == 1 else 's'} now: {shown}{more}"


def retention_outcome(cutoffs: Cutoffs) -> str:
    """The outcome text of a changed retention."""
    return f"kept: {describe_retention(cutoffs)} now"


def declaration_outcome(before: StoredRetention, cutoffs: Cutoffs) -> str:
    """The outcome text of a retention that a worker has changed, with what it was before."""
    return f"{retention_outcome(cutoffs)}, was {describe_retention(before)}"


def describe_retention(cutoffs: Cutoffs | StoredRetention) -> str:
    """A retention as text: `7 d (succeeded), 30 d (failed), for ever (cancelled), 400 d (statistics)`."""
    ages = {
        "succeeded": cutoffs.succeeded,
        "failed": cutoffs.failed,
        "cancelled": cutoffs.cancelled,
        "statistics": cutoffs.statistics,
    }
    return ", ".join(f"{'for ever' if age is None else rough(age / 1e6)} ({what})" for what, age in ages.items())


def schedule_outcome(done: bool | None, changed: str, unchanged: str) -> str:
    """The outcome text of a change of a schedule. Raises `Rejected` if `done` is None: there is no such schedule."""
    if done is None:
        raise Rejected("no schedule of that name")
    return changed if done else unchanged


def cancel_outcome(moved: Moved) -> str:
    """The outcome text of a cancellation. Raises `Rejected` if there is no such task."""
    if moved.state is None:
        raise Rejected("no task of that id")
    if not moved.done:
        return ENDED_BEFORE
    return CANCEL_REQUESTED if moved.state is State.RUNNING else "cancelled"


def retry_outcome(moved: Moved) -> str:
    """The outcome text of a retry."""
    if moved.key_holder is not None:
        raise Rejected(HELD_KEY.format(moved.key_holder))
    if moved.is_map:
        raise Rejected(MAP_SUCCEEDED)
    return moved_outcome(moved, "retried")


def key_holder_of(action: AuditRecord) -> int | None:
    """The live task that holds the key of a task whose retry was rejected, from the outcome text. None if there is
    none."""
    return _number_in(action, HELD_KEY)


def dependent_of(action: AuditRecord) -> int | None:
    """The live task that depends on a task whose deletion was rejected, from the outcome text. None if there is
    none."""
    return _number_in(action, NEEDED)


def _number_in(action: AuditRecord, rejection: str) -> int | None:
    found = re.fullmatch(re.escape(REJECTED + rejection).replace(r"\{\}", r"(\d+)"), action.outcome or "")
    return None if found is None else int(found[1])


def delete_outcome(moved: Moved) -> str:
    """The outcome text of a deletion."""
    if moved.needed_by is not None:
        raise Rejected(NEEDED.format(moved.needed_by))
    return moved_outcome(moved, "deleted")


def meta_outcome(meta: dict[str, Any] | None) -> str:
    """The outcome text of a change of metadata. Raises `Rejected` if there is no such task."""
    if meta is None:
        raise Rejected("no task of that id")
    return "changed"


def moves_outcome(moves: Sequence[Moved], done: str) -> str:
    """The outcome text of an operation on the tasks of a group or a flow. Raises `Rejected` if another task holds the
    key of one of them."""
    holder = next((moved.key_holder for moved in moves if moved.key_holder is not None), None)
    if holder is not None:
        raise Rejected(HELD_KEY.format(holder))
    count = sum(moved.done for moved in moves)
    return f"{count} {'task' if count == 1 else 'tasks'} {done}"


def moved_outcome(moved: Moved, done: str) -> str:
    """The outcome text of an operation on one task. Raises `Rejected` if its state does not allow it."""
    if moved.done:
        return done
    raise Rejected("no task of that id" if moved.state is None else f"the task is {moved.state}")


def cancelled(action: AuditRecord, task_id: int, record: TaskRecord | None) -> Moved:
    """What an operator's cancellation did to the task, derived from its outcome text. `record` is the task as it was
    read afterwards."""
    if action.is_rejected:
        return Moved(id=task_id, done=False, state=None)
    kind = None if record is None else record.kind
    if action.outcome == ENDED_BEFORE:
        return Moved(id=task_id, done=False, state=None if record is None else record.state, kind=kind)
    if action.outcome == CANCEL_REQUESTED:
        node_id = None if record is None else record.node_id
        return Moved(id=task_id, done=True, state=State.RUNNING, kind=kind, node_id=node_id)
    return Moved(id=task_id, done=True, state=State.CANCELLED, kind=kind)
