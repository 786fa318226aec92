"""Dependencies between tasks: what a new task needs, and what has become of it."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.record import Record

IfFails = Literal["cancel", "run", "group"]
"""What becomes of a task if a dependency does not succeed. `cancel`: it is cancelled. `run`: it runs. `group`: it
follows a group, so it runs, and a later retry of the dependency does not concern it."""

RESULTS_LIMIT_BYTES: Final = 16 * 2**20
"""The maximum size of all results together that one task gets from its dependencies, in bytes."""

DELETED: Final = "deleted"
"""The end of a dependency that was deleted. Other dependencies end in one of the final states."""


class Need(Record, frozen=True, kw_only=True):
    """A task that a new task depends on: a stored task, or another new task of the same call."""

    task_id: int | None = None
    step: int | None = None
    """The index of the other new task in the list of the call."""


class Dependency(Record, frozen=True, kw_only=True):
    """A task that another task depends on."""

    task_id: int
    position: int
    """Its place in the list `after`, or in the order in which a flow's step uses results. The items of a map have the
    position of the map."""
    item: int | None = None
    """The index of the item, if a map has created the task."""
    kind: str | None = None
    """None if the task does not exist any more."""
    state: State | None = None
    """The state in which the task ended, or its present state. None if it was deleted."""
    reason: Reason | None = None
    result_json: msgspec.Raw | None = msgspec.field(default=None, name="result")
    """The result as JSON. None if it did not succeed, or if the results of all dependencies are too large together."""

    @property
    def succeeded(self) -> bool:
        """Whether the task has succeeded."""
        return self.state is State.SUCCEEDED

    @property
    def is_open(self) -> bool:
        """Whether the task has not ended."""
        return self.state is not None and self.state not in FINAL

    @property
    def result(self) -> Any:
        """The result as a plain JSON value."""
        return None if self.result_json is None else msgspec.json.decode(self.result_json)
