"""Shares the slots of a node between providers, so that the backlog of one provider does not delay another.

Limits and servers separate providers in the store, but they share the slots of a node. Without this, a provider with
large servers could fill all slots, and the others would wait for its whole backlog.
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
    """The slots of a node, from its ledger or its published status."""

    @property
    def free(self) -> int:
        """How many more tasks can start."""

    @property
    def taken(self) -> int:
        """How many tasks have started since the node exists."""

    def count(self, kind: str) -> int:
        """How many tasks of the kind run, or are about to start."""


class Fairness:
    """Gives each provider its part of the slots while others may need theirs. Nodes and `explain` both use it, so it
    reads only what a node publishes."""

    def __init__(self, kinds: Mapping[str, KindStatus], slots: Slots) -> None:
        self._slots = slots
        self._provider = {
            kind: said.provider for kind, said in kinds.items() if said.provider is not None and not said.is_command
        }
        """The provider of each kind. Commands are not included, because they need no slot."""
        self.is_needed = len(set(self._provider.values())) > 1

    def share(self, requests: Sequence[KindRequest]) -> list[KindRequest]:
        """Reduce each request to its provider's part, while several providers may have tasks that can start.

        Slots that a provider does not use are free for all in the next claim, which follows at once. Within a provider,
        and among tasks without one, claim order decides.
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
        """Distribute the free slots: each goes to the provider with the fewest. Among equals the first provider changes
        with each started task, so that a single slot does not always go to one provider."""
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
    if share is None or request.is_urgent:  # urgent kinds are not bound to the parts of providers
        return request
    return msgspec.structs.replace(request, count=min(request.count, share))
