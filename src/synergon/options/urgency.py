"""The options `urgent`, `preemptible` and `uninterruptible` of a kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from synergon.errors import OptionError

OPTION_NAMES: Final = ("urgent", "preemptible", "uninterruptible")


def urgency_options(options: Mapping[str, Any], where: str) -> dict[str, bool]:
    """Check the values of these options. Raises OptionError if they exclude each other."""
    said = {name: check_flag(options[name], f"{where}: {name}") for name in OPTION_NAMES if name in options}
    if said.get("preemptible") and said.get("urgent"):
        raise OptionError(
            f"{where}: urgent and preemptible are mutually exclusive: an urgent task never yields; give one of them"
        )
    if said.get("preemptible") and said.get("uninterruptible"):
        raise OptionError(f"{where}: what is uninterruptible never yields; give one of it and preemptible, not both")
    return said


def check_flag(value: Any, what: str) -> bool:
    """Check that the value is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{what} must be True or False, got {value!r}")
    return value
