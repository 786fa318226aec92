"""Checks the options `cost`, `needs` and `forbids`. An option that a call does not give is taken from its kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from synergon.errors import OptionError
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, Requirements, make_requirements
from synergon.policies import LONGEST_NAME, Resources

OPTION_NAMES: Final = ("cost", "needs", "forbids")
LONGEST_TEXT: Final = 1000
"""The maximum length of a requirements text in bytes. It is limited because the text is part of an index."""


class GivenRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements that options give. Each one that is not given is None."""

    cost: dict[str, int] | None = None
    needs: frozenset[str] | None = None
    forbids: frozenset[str] | None = None

    @property
    def left(self) -> tuple[str, ...]:
        """The names of the options that are not given."""
        return tuple(name for name in OPTION_NAMES if getattr(self, name) is None)


NOTHING_GIVEN: Final = GivenRequirements()


def given_requirements(options: Mapping[str, Any], where: str) -> GivenRequirements:
    """Check the requirements in these options. Raises OptionError if they are invalid."""
    if not any(name in options for name in OPTION_NAMES):
        return NOTHING_GIVEN
    cost = None
    if "cost" in options:
        if not isinstance(options["cost"], Resources):
            raise OptionError(f"{where}: cost must be Resources, like Resources(cpu=1), got {options['cost']!r}")
        cost = options["cost"].amounts()
    needs, forbids = (
        check_labels(options[name], f"{where}: {name}") if name in options else None for name in ("needs", "forbids")
    )
    said = GivenRequirements(cost=cost, needs=needs, forbids=forbids)
    check(said.cost or {}, said.needs or (), said.forbids or (), where)
    return said


def requirements_of_kind(said: GivenRequirements) -> Requirements:
    """The requirements of a kind for which these were given."""
    return make_requirements(said.cost or {}, said.needs or frozenset(), said.forbids or frozenset())


def requirements_text(
    said: GivenRequirements, of_kind: Requirements | None, *, is_long: bool, is_process: bool | None, where: str
) -> str:
    """The text of a call's requirements for the task's row. `of_kind` is None if the kind is not known here.

    `is_long`: the call may run for longer than its kind's timeout, which matters for reservations. `is_process`:
    whether the task function runs in a child process; None if the call does not override that.
    """
    is_short = not is_long or (of_kind is not None and not of_kind.cost)
    if said is NOTHING_GIVEN and is_short and is_process is None:
        return KIND_DEFAULT if of_kind is None or of_kind == NO_REQUIREMENTS else of_kind.text
    if of_kind is None:
        found, left = requirements_of_kind(said), said.left
    else:
        found, left = _merged(said, of_kind, where), ()
    if of_kind == NO_REQUIREMENTS == found and is_process is None:
        return KIND_DEFAULT
    is_long = is_long and (bool(found.cost) or "cost" in left)
    return msgspec.structs.replace(found, left_to_kind=left, is_long=is_long, is_process=is_process).text


def _merged(said: GivenRequirements, of_kind: Requirements, where: str) -> Requirements:
    cost = of_kind.cost if said.cost is None else said.cost
    needs = frozenset(of_kind.needs) if said.needs is None else said.needs
    forbids = frozenset(of_kind.forbids) if said.forbids is None else said.forbids
    check(cost, needs, forbids, where)
    return make_requirements(cost, needs, forbids)


def check(cost: Mapping[str, int], needs: Iterable[str], forbids: Iterable[str], where: str) -> None:
    """Raise OptionError if no node could ever meet the requirements, or if their text is too long for the index."""
    both = sorted(frozenset(needs) & frozenset(forbids))
    if both:
        raise OptionError(f"{where}: {both[0]!r} is both needed and forbidden; no node could run it")
    length = len(make_requirements(cost, frozenset(needs), frozenset(forbids)).text.encode())
    if length > LONGEST_TEXT:
        raise OptionError(
            f"{where}: cost, needs and forbids together take {length} bytes, and at most {LONGEST_TEXT} are kept; "
            "use fewer or shorter names"
        )


def check_labels(value: Any, what: str) -> frozenset[str]:
    """Check labels of nodes: words without blanks and commas."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionError(f'{what} must be a set of labels, like {{"zone:eu"}}, got {value!r}')
    return frozenset(_check_label(label, what) for label in value)


def _check_label(value: Any, what: str) -> str:
    is_word = isinstance(value, str) and value.isprintable() and not any(c.isspace() or c == "," for c in value)
    if not is_word or not 1 <= len(value) <= LONGEST_NAME:
        raise OptionError(
            f"{what}: a label is a word of at most {LONGEST_NAME} characters without blanks and commas, got {value!r}"
        )
    return str(value)
