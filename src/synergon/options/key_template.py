"""The key of a task's key queue: computes what `limit_by` makes of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, Final

from synergon.errors import OptionError, PayloadError

KEY_LENGTH: Final = 200
SINGLE_KEY: Final = ""
"""The key of all tasks of a kind that has a rate and no `limit_by`."""


class KeyTemplate:
    """Computes the key from the arguments that the function or template uses."""

    def __init__(
        self, by: Callable[..., Any] | str | None, parameters: Mapping[str, inspect.Parameter], kind: str
    ) -> None:
        self._kind = kind
        self._by = by
        self._defaults = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        self._wanted = _wanted(by, kind)
        for name in self._wanted:
            if name not in parameters:
                raise OptionError(
                    f"limit_by of {kind!r} asks for {name!r}, which is no argument of the task; "
                    f"it takes ({', '.join(parameters)})"
                )

    def key(self, arguments: Mapping[str, Any]) -> str:
        """The key. PayloadError if the function raises or returns an invalid key."""
        if self._by is None:
            return SINGLE_KEY
        known = {**self._defaults, **arguments}
        try:
            values = {name: known[name] for name in self._wanted}
            made = self._by.format(**values) if isinstance(self._by, str) else self._by(**values)
        except Exception as error:
            raise PayloadError(f"limit_by of task {self._kind!r} raised {type(error).__name__}: {error}") from error
        if isinstance(made, bool) or not isinstance(made, str | int) or not 0 < len(str(made)) <= KEY_LENGTH:
            raise PayloadError(
                f"limit_by of task {self._kind!r} must return text of 1 to {KEY_LENGTH} characters or a whole number, "
                f"got {made!r}"
            )
        return str(made)


def _wanted(by: Callable[..., Any] | str | None, kind: str) -> tuple[str, ...]:
    """The names of the arguments that the function or template uses."""
    if by is None:
        return ()
    if isinstance(by, str):
        try:
            fields = [field for _, field, _, _ in Formatter().parse(by) if field is not None]
        except ValueError as error:
            raise OptionError(f"limit_by of {kind!r} is no template: {error}; write it like '{{customer}}'") from error
        if not fields:
            raise OptionError(f"limit_by of {kind!r} names no argument, got {by!r}; write it like '{{customer}}'")
        return tuple(dict.fromkeys(field.partition(".")[0].partition("[")[0] for field in fields))
    if not callable(by):
        raise OptionError(f"limit_by of {kind!r} must be a function or a template like '{{customer}}', got {by!r}")
    return tuple(inspect.signature(by).parameters)
