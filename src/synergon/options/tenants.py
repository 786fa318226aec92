"""The options `fair_by` and `weight`: which tenant a task belongs to, and how many turns the tenant gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from synergon.errors import OptionError, PayloadError
from synergon.options.argument_template import Parameters
from synergon.options.key_template import KeyTemplate

LEAST_WEIGHT: Final = 0.001
GREATEST_WEIGHT: Final = 1000
STEP: Final = 1_000_000
"""The distance between the tags of a tenant of weight 1."""

Weight = float | Mapping[str, float] | Callable[[str], float]
"""The weight of all tenants; or weights by tenant, where others have 1; or a function that gets the tenant."""


class Tenant(NamedTuple):
    """The tenant of a task, and the distance between the tags of its tasks."""

    name: str
    step: int


class TenantTemplate:
    """Computes the tenant of a task and its step from the arguments, by `fair_by` and `weight` of the kind."""

    def __init__(self, by: Callable[..., Any] | str, weight: Weight, parameters: Parameters, kind: str) -> None:
        self._template = KeyTemplate(by, parameters, f"fair_by of task {kind!r}")
        self.what: Final = self._template.what
        self.names: Final = self._template.names
        self._weight = weight
        self._what = f"weight of task {kind!r}"

    def tenant(self, arguments: Mapping[str, Any], weight: float | None) -> Tenant:
        """The tenant for these arguments. `weight` is that of the call. Raises PayloadError if a function of the kind
        raises, or returns no valid value."""
        name = self._template.key(arguments)
        return Tenant(name, step_of_weight(self._weight_of(name) if weight is None else weight))

    def _weight_of(self, name: str) -> float:
        weight = self._weight
        if isinstance(weight, Mapping):
            return weight.get(name, 1)
        if not callable(weight):
            return weight
        try:
            made = weight(name)
        except Exception as error:
            raise PayloadError(f"{self._what} raised {type(error).__name__} for {name!r}: {error}") from error
        try:
            return check_weight(made, f"{self._what} for {name!r}")
        except OptionError as error:
            raise PayloadError(str(error)) from None


def step_of_weight(weight: float) -> int:
    """The distance between the tags of a tenant of this weight."""
    return round(STEP / weight)


def fair_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check `fair_by` and `weight` of a kind."""
    if "fair_by" not in options:
        if "weight" in options:
            raise OptionError(f"{where}: weight says how many turns a tenant gets; give fair_by too")
        return {}
    for other in ("limit_by", "rate"):
        if other in options:
            raise OptionError(
                f"{where}: fair_by and {other} cannot be combined yet: a key queue has an order of its own; remove one"
            )
    return {"fair_by": options["fair_by"], "weight": _check_weights(options.get("weight", 1), where)}


def _check_weights(value: Any, where: str) -> Weight:
    what = f"{where}: weight"
    if isinstance(value, Mapping):
        return {_check_name(name, what): check_weight(weight, f"{what} of {name!r}") for name, weight in value.items()}
    return value if callable(value) else check_weight(value, what)


def _check_name(name: Any, what: str) -> str:
    if not isinstance(name, str):
        raise OptionError(f"{what} must have the names of tenants as keys, as text, got {name!r}")
    return name


def check_weight(value: Any, what: str) -> float:
    """Check the weight of a tenant."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not LEAST_WEIGHT <= value <= GREATEST_WEIGHT:
        raise OptionError(f"{what} must be a number from {LEAST_WEIGHT} to {GREATEST_WEIGHT}, got {value!r}")
    return float(value)
