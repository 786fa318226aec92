"""Short kinds: their task functions run in child processes for so short a time that the node claims some of their tasks
ahead. These tasks wait in the node for a child process, so that one claim and one write of outcomes serve many tasks.

A task that waits has not begun: its timeout has not started, no death of a child is charged to it, and a cancellation
or the stop of the node withdraws it. It is handed back if no child process becomes free for it in `WAIT_SECONDS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from synergon.model.requirements import ONE_PROCESS, PROCESS, UNIT
from synergon.node.claims.ledger import Ledger
from synergon.task import AnyTask

SAMPLES: Final = 20
"""How many of the last task functions of a kind are measured. Their mean duration decides whether the kind is short."""

SHORT_SECONDS: Final = 0.005
"""The mean duration, in seconds, below which a kind is short."""

AHEAD_SECONDS: Final = 0.02
"""The maximum work that waits for each child process, in seconds, by the mean duration."""

MOST_AHEAD: Final = 16
"""The maximum number of tasks that wait for each child process."""

WAIT_SECONDS: Final = 0.1
"""How many seconds a task that was claimed ahead waits for a child process before it is handed back."""


class ShortKinds:
    """Measures the task functions of a node that run in child processes, and decides how many tasks to claim ahead."""

    def __init__(self, kinds: Mapping[str, AnyTask], ledger: Ledger) -> None:
        self._kinds = kinds
        self._ledger = ledger
        self._candidates = frozenset(kind for kind, task_type in kinds.items() if _may_wait(task_type))
        if any(task_type.policy.urgent for task_type in kinds.values()):
            self._candidates = frozenset()  # a task that waits could neither yield nor be counted as capacity
        self._durations: dict[str, deque[float]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether tasks of any kind may be claimed ahead."""
        return bool(self._candidates)

    def note(self, kind: str, seconds: float) -> None:
        """Note how long a task function of this kind has run."""
        if kind in self._candidates:
            self._durations.setdefault(kind, deque(maxlen=SAMPLES)).append(seconds)

    def forget(self) -> None:
        """Discard all measured durations, so that no task is claimed ahead until its kind has been measured again.
        Called after a task that was claimed ahead has waited too long."""
        self._durations.clear()

    def ahead(self, kind: str) -> int | None:
        """How many tasks of the kind may be claimed in addition to those for free child processes. None if the kind is
        not to be claimed now: more than half of the maximum wait already, and a claim for the rest is not worth its
        cost."""
        mean = self._mean(kind)
        if mean is None or not self._only_short_run():
            return 0
        most = self._ledger.processes * min(MOST_AHEAD, int(AHEAD_SECONDS / max(mean, 1e-6)))
        waiting = self._ledger.waiting_for_processes
        return None if waiting * 2 > most else most - waiting

    def _mean(self, kind: str) -> float | None:
        """The mean duration of a short kind. None if the kind is not short, or not measured yet."""
        durations = self._durations.get(kind)
        if durations is None or len(durations) < SAMPLES:
            return None
        task_type, mean = self._kinds[kind], sum(durations) / SAMPLES
        # These take an attempt as begun from the moment of its claim.
        takes_start_from_claim = task_type.hooks or task_type.around or task_type.final_failure
        return None if mean >= SHORT_SECONDS or takes_start_from_claim else mean

    def _only_short_run(self) -> bool:
        """Whether all child processes in use run tasks of short kinds, so that one will soon be free."""
        short = sum(self._ledger.by_kind[kind] for kind in self._durations if self._mean(kind) is not None)
        return self._ledger.used.get(PROCESS, 0) <= short * UNIT


def _may_wait(task_type: AnyTask) -> bool:
    """Whether tasks of the kind need nothing but a slot and a child process, so that no permit is held while they
    wait."""
    has_more = task_type.is_limited or task_type.is_command or task_type.policy.batch is not None
    return task_type.weight == ONE_PROCESS and not has_more
