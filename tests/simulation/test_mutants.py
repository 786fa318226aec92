"""A mutant takes the place of a function, so it takes the same arguments: one that cannot be called proves nothing."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest
from tests.simulation.deploy_mutants import DEPLOY_MUTANTS
from tests.simulation.limit_mutants import LIMIT_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.network_mutants import NETWORK_MUTANTS
from tests.simulation.schedule_mutants import SCHEDULE_MUTANTS


class Comparing:
    """Replaces nothing, and compares what would be replaced."""

    def setattr(self, target: Any, name: str, value: Any) -> None:
        """Fail if the mutant cannot be called as its original is."""
        original = getattr(target, name)
        if not callable(original):
            return
        assert _shape(value) == _shape(original), f"{name} of {target.__name__}"


def _shape(function: Any) -> tuple[bool, list[tuple[Any, bool]]]:
    parameters = inspect.signature(function).parameters.values()
    return inspect.iscoroutinefunction(function), [
        (parameter.kind, parameter.default is inspect.Parameter.empty) for parameter in parameters
    ]


MANY = [*MUTANTS, *LIMIT_MUTANTS, *DEPLOY_MUTANTS, *NETWORK_MUTANTS, *SCHEDULE_MUTANTS]


@pytest.mark.parametrize("mutate", MANY, ids=lambda mutate: mutate.__name__)
def test_a_mutant_takes_the_arguments_of_its_original(mutate: Mutant) -> None:
    mutate(cast("pytest.MonkeyPatch", Comparing()))
