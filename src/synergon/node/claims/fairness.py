"""Shares the slots of a node between providers, so that the backlog of one provider does not delay another.

In the store, limits and servers separate providers; on a node, they share the slots. Without this module, a provider
with large servers could fill all slots, and the others would wait for its whole backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from math import ceil
from typing import Final, Protocol

import msgspec

from synergon.model.claims import KindRequest
from synergon.model.node_status import KindStatus


class Slots(Protocol):
    """The slots of a node, from its ledger or its published status."""

    @property
    def free(self) -> int:
        """How many more attempts can start."""

    @property
    def taken(self) -> int:
        """How many attempts have started since the node was made."""

    def count(self, kind: str) -> int:
        """How many attempts of the kind run, or are promised capacity."""


class Fairness:
    """Gives each provider its part of the slots while other providers may need theirs. Nodes and `explain` both use it,
    so it uses only what a node publishes."""

    def __init__(self, kinds: Mapping[str, KindStatus], slots: Slots) -> None:
        self._slots = slots
        self._provider = {
            kind: said.provider for kind, said in kinds.items() if said.provider is not None and not said.is_command
        }
        """The provider of each kind that has one. Commands are left out, because they need no slot."""
        self.is_needed: Final = len(set(self._provider.values())) > 1

    def share(self, requests: Sequence[KindRequest]) -> list[KindRequest]:
        """Reduce the request of each kind to its part of the slots, while several providers may have tasks that can
        start.

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
        """Distribute the free slots. Each goes to the provider with the fewest slots. Ties are broken by a rotation
        that advances with each started attempt, so that a single slot does not always go to one provider."""
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
