"""Bounds of a node: how many tasks of a queue or of a provider it runs at once.

A bound is counted like a resource, and each task uses one unit of it: the ledger, the claim planner, the status and
`explain` need no rule of their own for it. A node without bounds has none of these names in its totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from synergon.model.requirements import UNIT, bounds_of, provider_bound, queue_bound
from synergon.task import AnyTask


def bound_totals(queues: Mapping[str, int | None] | None, kinds: Iterable[AnyTask]) -> dict[str, int]:
    """The bounds of a node with these queues and kinds, as totals of its ledger."""
    of_queues = {queue_bound(queue): bound for queue, bound in (queues or {}).items()}
    of_providers = {provider_bound(kind.provider.name): kind.provider.slots for kind in kinds if kind.provider}
    return {name: bound * UNIT for name, bound in (of_queues | of_providers).items() if bound is not None}


def bounds_by_kind(kinds: Mapping[str, AnyTask], totals: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The bounds of each kind that has any."""
    bounds = {
        name: bounds_of(totals, kind.provider.name if kind.provider else None, is_command=kind.is_command)
        for name, kind in kinds.items()
    }
    return {name: found for name, found in bounds.items() if found}
