"""What capacity of this node is in use. It belongs to an execution: it is taken before the body starts and given back
when the body has really ended, in one place each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from synergon.model.requirements import PROCESS, UNIT

COMMANDS_AT_ONCE: Final = 16
"""How many commands a node runs beside its tasks."""

NO_COST: Final[Mapping[str, int]] = {}


class Usage:
    """How many attempts, all and by kind; and what they use of each resource, and of child processes."""

    def __init__(self) -> None:
        self.in_use = 0
        self.commands_in_use = 0
        self.by_kind: Counter[str] = Counter()
        self.used: dict[str, int] = {}
        self.by_cost: Counter[tuple[tuple[str, int], ...]] = Counter()
        """Without those that use nothing."""
        self.taken = 0
        """How many have ever started."""
        self.returns = 0
        """How often something of a resource was given back."""

    def take(self, kind: str, *, is_command: bool = False, cost: Mapping[str, int] = NO_COST) -> None:
        """An attempt starts."""
        if is_command:
            self.commands_in_use += 1
        else:
            self.in_use += 1
        self.by_kind[kind] += 1
        self.taken += 1
        if cost:
            self._take(cost)

    def release(self, kind: str, *, is_command: bool = False, cost: Mapping[str, int] = NO_COST) -> None:
        """An attempt has really ended."""
        if is_command:
            self.commands_in_use -= 1
        else:
            self.in_use -= 1
        self.by_kind[kind] -= 1
        assert self.in_use >= 0, "a slot was given back twice"
        if cost:
            self._release(cost)

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
        self.returns += 1


class Ledger(Usage):
    """What running attempts use. Commands have places of their own, so that a full node still obeys.

    What is available of a resource is its total less what running attempts use, and it is never negative: an attempt
    is taken only if a claim has weighed it against what was available. An urgent one that was claimed before there is
    room for it is promised the room instead: it is not running yet, and nobody else is given what is promised to it.
    """

    def __init__(self, concurrency: int, processes: int, totals: Mapping[str, int] = NO_COST) -> None:
        super().__init__()
        self.concurrency = concurrency
        self.processes = processes
        self.totals = {PROCESS: processes * UNIT, **totals}
        """What the node has of each resource, and of child processes (`demands`)."""
        self.promised = Usage()

    @property
    def free(self) -> int:
        """How many attempts could start; less than none, while promised ones wait for others to yield."""
        return self.concurrency - self.in_use - self.promised.in_use

    @property
    def commands_free(self) -> int:
        """How many commands could start."""
        return max(COMMANDS_AT_ONCE - self.commands_in_use, 0)

    @property
    def available(self) -> dict[str, int]:
        """What no running attempt uses of each resource."""
        return {name: total - self.used.get(name, 0) for name, total in self.totals.items()}

    @property
    def unpromised(self) -> dict[str, int]:
        """The same without what is promised; less than nothing, while others have to yield for that."""
        promised = self.promised.used
        return {name: amount - promised.get(name, 0) for name, amount in self.available.items()}

    @property
    def shares(self) -> tuple[dict[str, int], ...]:
        """What single attempts use that run, or are promised to; of those that use the same, one."""
        return tuple(map(dict, dict.fromkeys([*self.by_cost, *self.promised.by_cost])))

    def count(self, kind: str) -> int:
        """How many of the kind run, or are promised to."""
        return self.by_kind[kind] + self.promised.by_kind[kind]
