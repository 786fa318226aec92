"""Values and texts of operator actions: parses the value of an action, and makes the text of its outcome for the
audit."""

from __future__ import annotations

import re
from typing import Any, Final

from synergon.errors import OptionError
from synergon.model.lifecycle import State
from synergon.model.limits import NewServer
from synergon.model.operator_actions import REJECTED, AuditRecord, NewAction, Verb
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Moved
from synergon.options.addresses import normal_address

NODE_VERBS: Final[frozenset[Verb]] = frozenset({"cordon", "uncordon", "stop", "drain", "restart"})
"""Operator actions that the named node carries out."""
CORDONING: Final[frozenset[Verb]] = frozenset({"cordon", "drain", "restart"})
"""Operator actions that cordon the named node at once, in the transaction that records the action."""
ENDED_BEFORE: Final = "ended before"
CANCEL_REQUESTED: Final = "cancel requested"
HELD_KEY: Final = "task {} is live and holds its key"


NO_NODE: Final = "no node of that id"
DEAD_NODE: Final = "its lease is over"
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


def limit_value(action: NewAction) -> int | None:
    """The new value of a limit. None means no limit. Raises `Rejected` if it is not valid."""
    return _number(action.value, "a limit")


def servers(action: NewAction) -> list[NewServer]:
    """The new pool of a provider. Raises `Rejected` if it is not valid."""
    value = action.value
    if not isinstance(value, list | tuple) or not all(isinstance(one, list | tuple) and len(one) == 2 for one in value):
        raise Rejected(f"servers are [[address, capacity], ...], got {value!r}")
    pool = [NewServer(address=_address(one[0]), capacity=_number(one[1], "a capacity")) for one in value]
    if len({server.address for server in pool}) < len(pool):
        raise Rejected("two servers have the same address")
    return pool


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


def limit_outcome(name: str, value: int | None, *, done: bool) -> str:
    """The outcome text of a changed limit. Raises `Rejected` if it was not changed."""
    if not done:
        raise Rejected("no limit of that name")
    return f"limit {name} is {'unlimited' if value is None else value} now"


def servers_outcome(name: str, pool: list[NewServer], *, done: bool) -> str:
    """The outcome text of a changed pool. Raises `Rejected` if it was not changed."""
    if not done:
        raise Rejected(NO_PROVIDER)
    return f"provider {name} has {len(pool)} server{'' if len(pool) == 1 else 's'} now"


def schedule_outcome(done: bool | None, changed: str, unchanged: str) -> str:
    """The outcome text of a change of a schedule; `done` is None if there is no such schedule."""
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
    return _moved_outcome(moved, "retried")


def key_holder_of(action: AuditRecord) -> int | None:
    """The live task whose key was in the way of a retry, from the outcome text."""
    found = re.fullmatch(re.escape(REJECTED + HELD_KEY).replace(r"\{\}", r"(\d+)"), action.outcome or "")
    return None if found is None else int(found[1])


def delete_outcome(moved: Moved) -> str:
    """The outcome text of a deletion."""
    return _moved_outcome(moved, "deleted")


def _moved_outcome(moved: Moved, done: str) -> str:
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
