"""How providers share the slots of a node: one provider's backlog never delays another's.

Servers and limits keep providers apart in the store; a node's slots are what they have in common. A provider whose
servers could take everything would fill them all, and those behind it would wait for its whole backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heapreplace
from math import ceil
from typing import Protocol


class Slots(Protocol):
    """The slots of a node; its ledger has them, and what it says of itself."""

    @property
    def free(self) -> int:
        """How many more tasks could start."""

    @property
    def taken(self) -> int:
        """How many have ever started."""

    def count(self, kind: str) -> int:
        """How many of the kind run, or are about to."""


class Fairness:
    """Gives each provider its part of the slots, as long as others may want theirs."""

    def __init__(self, providers: Mapping[str, str], slots: Slots, free_count: Callable[[str], int]) -> None:
        self._provider = providers
        """By the kinds of their tasks; commands have places of their own."""
        self._slots = slots
        self._free_count = free_count

    def shares(self, wanted: Collection[str]) -> dict[str, int]:
        """How many of each kind to ask for at most, while several providers may have work that could start.

        What the others turn out not to want is free for all at the next claim, which follows at once. Within a
        provider, and among tasks that have none, the order is that of all tasks.
        """
        waiting: dict[str, list[str]] = {}
        for kind in wanted:
            if kind in self._provider and self._free_count(kind) > 0:
                waiting.setdefault(self._provider[kind], []).append(kind)
        if len(waiting) < 2:
            return {}
        given = self._dealt(sorted(waiting))
        return {kind: ceil(given[provider] / len(kinds)) for provider, kinds in waiting.items() for kind in kinds}

    def _dealt(self, providers: list[str]) -> Counter[str]:
        """The free slots, each given to the provider that has the fewest by then; among equals it is another one's turn
        whenever something has started, so that a single slot that is free now and then does not go to the same."""
        heap = [
            (self._in_use(provider), (number + self._slots.taken) % len(providers), provider)
            for number, provider in enumerate(providers)
        ]
        heapify(heap)
        given: Counter[str] = Counter()
        for _ in range(max(self._slots.free, 0)):
            has, tie, provider = heap[0]
            given[provider] += 1
            heapreplace(heap, (has + 1, tie, provider))
        return given

    def _in_use(self, provider: str) -> int:
        return sum(self._slots.count(kind) for kind, its_provider in self._provider.items() if its_provider == provider)
