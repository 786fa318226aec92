"""What capacity of this node is in use. A slot belongs to an execution: it is taken before the body starts and given
back when the body has really ended, in one place each."""

from __future__ import annotations

from collections import Counter
from typing import Final

COMMANDS_AT_ONCE: Final = 16
"""How many commands a node runs beside its tasks."""


class Ledger:
    """Counts running attempts: all, by kind, and those in child processes. Commands have places of their own, so that a
    full node still obeys."""

    def __init__(self, concurrency: int, processes: int) -> None:
        self.concurrency = concurrency
        self.processes = processes
        self.in_use = 0
        self.processes_in_use = 0
        self.commands_in_use = 0
        self.by_kind: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """How many attempts could start."""
        return self.concurrency - self.in_use

    @property
    def processes_free(self) -> int:
        """How many attempts could start in child processes."""
        return max(self.processes - self.processes_in_use, 0)

    @property
    def commands_free(self) -> int:
        """How many commands could start."""
        return max(COMMANDS_AT_ONCE - self.commands_in_use, 0)

    def take(self, kind: str, *, is_process: bool, is_command: bool = False) -> None:
        """An attempt starts."""
        self.in_use += not is_command
        self.commands_in_use += is_command
        self.processes_in_use += is_process
        self.by_kind[kind] += 1

    def release(self, kind: str, *, is_process: bool, is_command: bool = False) -> None:
        """An attempt has really ended."""
        self.in_use -= not is_command
        self.commands_in_use -= is_command
        self.processes_in_use -= is_process
        self.by_kind[kind] -= 1
        assert self.in_use >= 0, "a slot was given back twice"
