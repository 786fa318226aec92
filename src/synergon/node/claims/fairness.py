"""How providers share the slots of a node: one provider's backlog never delays another's.

Servers and limits keep providers apart in the store; a node's slots are what they have in common. A provider whose
servers could take everything would fill them all, and those behind it would wait for its whole backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from math import ceil
from typing import Protocol

import msgspec

from synergon.model.claims import KindRequest
from synergon.model.node_status import KindStatus


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
    """Gives each provider its part of the slots, as long as others may want theirs. Nodes and `explain` use it: it
    looks at nothing but what a node publishes."""

    def __init__(self, kinds: Mapping[str, KindStatus], slots: Slots) -> None:
        self._slots = slots
        self._provider = {
            kind: said.provider for kind, said in kinds.items() if said.provider is not None and not said.is_command
        }
        """By the kinds of their tasks; commands have places of their own."""
        self.is_needed = len(set(self._provider.values())) > 1

    def share(self, requests: Sequence[KindRequest]) -> list[KindRequest]:
        """The requests, each for no more than its provider's part, while several providers may have work that could
        start.

        What the others turn out not to want is free for all at the next claim, which follows at once. Within a
        provider, and among tasks that have none, the order is that of all tasks.
        """
        waiting: dict[str, list[str]] = {}
        for request in requests:
            if request.kind in self._provider and request.count > 0:
                waiting.setdefault(self._provider[request.kind], []).append(request.kind)
        if len(waiting) < 2:
            return list(requests)
        given = self._dealt(sorted(waiting))
        shares = {kind: ceil(given[provider] / len(kinds)) for provider, kinds in waiting.items() for kind in kinds}
        return [_at_most(request, shares.get(request.kind)) for request in requests]

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


def _at_most(request: KindRequest, share: int | None) -> KindRequest:
    if share is None or request.is_urgent:  # what is urgent waits for no provider's turn
        return request
    return msgspec.structs.replace(request, count=min(request.count, share))
