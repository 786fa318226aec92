"""The ledger of a node's capacity: what running attempts use. An attempt takes its capacity before its task function
starts (`take`), and releases it when the function has really ended (`release`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from synergon.model.requirements import PROCESS, THREAD, UNIT, WHOLE_NODE

COMMANDS_AT_ONCE: Final = 16
"""How many commands a node runs at once, in addition to its tasks."""

NO_COST: Final[Mapping[str, int]] = {}


class Usage:
    """The numbers of attempts, in total and by kind, and the resources, child processes and threads that they use."""

    def __init__(self) -> None:
        self.in_use: int = 0
        self.commands_in_use: int = 0
        self.by_kind: Counter[str] = Counter()
        self.used: dict[str, int] = {}
        self.by_cost: Counter[tuple[tuple[str, int], ...]] = Counter()
        """The number of attempts for each distinct cost. Attempts that use no resources are not counted."""
        self.taken: int = 0
        """How many attempts have started since the node was made."""
        self.release_count: int = 0
        """How often an attempt has freed a resource, or the whole node."""

    def take(self, kind: str, *, is_command: bool = False, cost: Mapping[str, int] = NO_COST) -> None:
        """Add the usage of an attempt that starts."""
        if is_command:
            self.commands_in_use += 1
        else:
            self.in_use += 1
        self.by_kind[kind] += 1
        self.taken += 1
        if cost:
            self._take(cost)

    def release(self, kind: str, *, is_command: bool = False, cost: Mapping[str, int] = NO_COST) -> None:
        """Subtract the usage of an attempt that has ended."""
        if is_command:
            self.commands_in_use -= 1
        else:
            self.in_use -= 1
        self.by_kind[kind] -= 1
        assert self.in_use >= 0, "a slot was given back twice"
        if cost:
            self._release(cost)
        elif not self.in_use:
            self.release_count += 1  # the whole node is free

    def _take(self, cost: Mapping[str, int]) -> None:
        for name, amount in cost.items():
            self.used[name] = self.used.get(name, 0) + amount
        self.by_cost[tuple(cost.items())] += 1

    def _release(self, cost: Mapping[str, int]) -> None:
        for name, amount in cost.items():
            self.used[name] -= amount
            assert self.used[name] >= 0, f"{name} was given back twice"
        share = tuple(cost.items())
        self.by_cost[share] -= 1
        if not self.by_cost[share]:
            del self.by_cost[share]
        self.release_count += 1


class Ledger(Usage):
    """The capacity that running attempts use. Commands have slots of their own, so that a full node can run them.

    The available amount of a resource is its total less the usage of running attempts. It is never negative, because a
    claim takes only tasks that fit. An urgent task that is claimed before others have yielded to it is promised its
    capacity: it does not run yet, and no other task gets that capacity. Only child processes may be used by more
    attempts than there are: the others wait for one.
    """

    def __init__(
        self, concurrency: int, processes: int, totals: Mapping[str, int] = NO_COST, *, threads: int | None = None
    ) -> None:
        super().__init__()
        self.concurrency = concurrency
        self.processes = processes
        threads = concurrency if threads is None else threads
        self.totals: dict[str, int] = {PROCESS: processes * UNIT, THREAD: threads * UNIT, WHOLE_NODE: UNIT, **totals}
        """The totals by name: of each resource, of child processes, threads and bounds, and one unit for the whole
        node."""
        self.promised: Final = Usage()

    @property
    def free(self) -> int:
        """How many attempts can start: 0 while a running attempt needs the whole node, negative while promised attempts
        wait for others to yield."""
        if self.used.get(WHOLE_NODE):
            return min(1 - self.in_use - self.promised.in_use, 0)
        return self.concurrency - self.in_use - self.promised.in_use

    @property
    def commands_free(self) -> int:
        """How many more commands can start."""
        return max(COMMANDS_AT_ONCE - self.commands_in_use, 0)

    @property
    def available(self) -> dict[str, int]:
        """The amount of each resource that no running attempt uses."""
        amounts = {name: total - self.used.get(name, 0) for name, total in self.totals.items()}
        amounts[PROCESS] = max(amounts[PROCESS], 0)
        return amounts | {WHOLE_NODE: 0} if self.in_use else amounts

    @property
    def waiting_for_processes(self) -> int:
        """How many attempts wait for a child process, because they were claimed ahead."""
        return max(self.used.get(PROCESS, 0) - self.totals[PROCESS], 0) // UNIT

    @property
    def unpromised(self) -> dict[str, int]:
        """The available amounts less the promised ones. Negative while others have to yield."""
        promised = self.promised.used
        return {name: amount - promised.get(name, 0) for name, amount in self.available.items()}

    @property
    def shares(self) -> tuple[dict[str, int], ...]:
        """The distinct costs of running and promised attempts."""
        return tuple(map(dict, dict.fromkeys([*self.by_cost, *self.promised.by_cost])))

    def count(self, kind: str) -> int:
        """How many attempts of the kind run, or are promised capacity."""
        return self.by_kind[kind] + self.promised.by_kind[kind]
