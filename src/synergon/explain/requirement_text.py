"""Texts about requirements: amounts of resources, and why a node can never run a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from synergon.model.requirements import UNIT, Requirements, forbidden_labels, missing_labels, oversized

_SIZES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def why_never(requirements: Requirements, labels: frozenset[str], totals: Mapping[str, int]) -> list[str]:
    """The reasons for which a node with these labels and totals can never run the task, as predicates for "the node
    ...". Empty if there are none."""
    return [
        *(f"lacks the label {label}" for label in missing_labels(requirements, labels)),
        *(f"has the label {label}" for label in forbidden_labels(requirements, labels)),
        *(f"has {name} {amount_text(name, totals.get(name, 0))} in all" for name in oversized(requirements, totals)),
    ]


def requirements_in_text(requirements: Requirements) -> str:
    """The requirements as a text, for example `gpu 1, ram 2 GiB, needs zone:eu, forbids spot`."""
    amounts = [f"{name} {amount_text(name, amount)}" for name, amount in requirements.cost.items()]
    needs = [f"needs {label}" for label in requirements.needs]
    forbids = [f"forbids {label}" for label in requirements.forbids]
    return ", ".join((*amounts, *needs, *forbids)) or "nothing"


def natural(name: str, amount: int) -> float:
    """Convert the integer amount of a resource to the unit that people use. Memory remains in bytes."""
    return amount if name == "ram" else amount / UNIT


def natural_text(name: str, amount: float) -> str:
    """The text of an amount in the unit that people use."""
    return amount_text(name, round(amount if name == "ram" else amount * UNIT))


def amount_text(name: str, amount: int) -> str:
    """The text of an amount in integer units."""
    if name != "ram":
        return f"{amount / UNIT:.6f}".rstrip("0").rstrip(".")
    for unit, size in _SIZES:
        if amount >= size:
            return f"{amount / size:.3g} {unit}"
    return f"{amount} B"
