"""Pipelines of kinds: the rank of each kind in the pipelines that `downstream_of` defines.

The rank affects only claim order: no task waits for another because of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from synergon.errors import OptionError
from synergon.task import AnyTask


def reject_circle(kinds: Mapping[str, AnyTask]) -> None:
    """Raise OptionError if the pipelines contain a cycle. Kinds that are not registered yet may be named."""
    try:
        TopologicalSorter(_upstream(kinds)).prepare()
    except CycleError as error:
        circle = " after ".join(repr(kind) for kind in reversed(error.args[1]))
        raise OptionError(f"downstream_of goes round in a circle: {circle}; leave one of them out") from None


def reject_unknown_upstream(kinds: Mapping[str, AnyTask]) -> None:
    """Raise OptionError if a kind is downstream of a kind that is not registered."""
    for kind, earlier_kinds in _upstream(kinds).items():
        for earlier in earlier_kinds:
            if earlier not in kinds:
                raise OptionError(
                    f"task {kind!r} is downstream_of {earlier!r}, which is no kind of this engine; is it misspelt, or "
                    "is the module not imported that registers it?"
                )


def ranks(kinds: Mapping[str, AnyTask]) -> dict[str, int]:
    """The rank of each kind in claim order: rank 0 comes first. The longer the path that leads to a kind, the smaller
    its rank.

    Paths are counted from the beginnings of pipelines. Kinds outside pipelines have the rank of the beginnings. Later
    kinds cannot starve them, because tasks of later kinds come from the beginnings.
    """
    upstream = {kind: [earlier for earlier in before if earlier in kinds] for kind, before in _upstream(kinds).items()}
    depths: dict[str, int] = {}
    for kind in TopologicalSorter(upstream).static_order():
        depths[kind] = 1 + max((depths[earlier] for earlier in upstream[kind]), default=-1)
    deepest = max(depths.values(), default=0)
    return {kind: deepest - depth for kind, depth in depths.items()}


def _upstream(kinds: Mapping[str, AnyTask]) -> dict[str, tuple[str, ...]]:
    return {kind: task_type.policy.downstream_of for kind, task_type in kinds.items()}
