"""Overrides: the options of a call that override those of its kind, as its row stores them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from synergon.model.record import READ_ERRORS
from synergon.model.tasks import NewTask
from synergon.options.dependency_options import StoredReference
from synergon.policies import Retry

RunsIn = Literal["loop", "thread", "process"]


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a call that override those of its kind, stored with the task. Durations are in seconds; a timeout
    of -1 means that there is none."""

    timeout: float | None = None
    attempts: int | None = None
    first: float = 1.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.25
    runs_in: RunsIn | None = None
    schedule: str | None = None
    """The schedule that has created the task."""
    scheduled_for: int | None = None
    """The nominal moment of its occurrence, in microseconds since 1970."""
    results: dict[str, StoredReference] = {}
    """The arguments that are results of dependencies, by name."""
    result_items: dict[str, dict[str, StoredReference]] = {}
    """The arguments that are lists with results of dependencies among their items: the results by index."""
    item: NewTask | None = None
    """The task that a map creates for each item of its dependency's result, without the item. None if the task is no
    map."""

    @staticmethod
    def is_map(stored: bytes | None) -> bool:
        """Whether the task with these overrides is a map."""
        try:
            return stored is not None and msgspec.json.decode(stored, type=Overrides).item is not None
        except READ_ERRORS:  # one bad row harms only itself
            return False

    @property
    def retry(self) -> Retry | None:
        """The retry policy of this call, if it has one of its own."""
        if self.attempts is None:
            return None
        return Retry(attempts=self.attempts, first=self.first, factor=self.factor, cap=self.cap, jitter=self.jitter)


NO_TIMEOUT: Final = -1.0
