"""Keys that are made of the arguments of a task: its unique key (`key`), the key of its key queue (`limit_by`, or `by`
of a batch), and its tenant (`fair_by`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from synergon.errors import OptionError, PayloadError
from synergon.model.record import is_storable
from synergon.options.argument_template import ArgumentTemplate, Parameters, check_names, defaults_of

KEY_LENGTH: Final = 200
SINGLE_KEY: Final = ""
"""The key of all tasks of a kind that has a rate but no `limit_by`, or batches without `by`."""


class KeyTemplate:
    """Computes a key from the arguments, by a function or a template."""

    def __init__(self, by: Callable[..., Any] | str | None, parameters: Parameters | None, what: str) -> None:
        """If `parameters` is None, the names are not known here, and are not checked."""
        self.what = self._what = what
        self.names: Final = _names(by, parameters)
        """The arguments that the key is made of."""
        self._make = None if by is None else _maker(by, parameters, self._what)

    def key(self, arguments: Mapping[str, Any]) -> str:
        """The key for these arguments. Raises PayloadError if the function raises, or returns no valid key."""
        if self._make is None:
            return SINGLE_KEY
        made = self._make(arguments)
        if isinstance(made, bool) or not isinstance(made, str | int) or not 0 < len(str(made)) <= KEY_LENGTH:
            raise PayloadError(
                f"{self._what} must return text of 1 to {KEY_LENGTH} characters or a whole number, got {made!r}"
            )
        if not is_storable(str(made)):
            raise PayloadError(f"{self._what} must return text without NUL and lone surrogates, got {made!r}")
        return str(made)


def _names(by: Callable[..., Any] | str | None, parameters: Parameters | None) -> tuple[str, ...]:
    if isinstance(by, str):
        return tuple(name for name in parameters or () if f"{{{name}" in by)
    return tuple(inspect.signature(by).parameters) if callable(by) else ()


def _maker(
    by: Callable[..., Any] | str, parameters: Parameters | None, what: str
) -> Callable[[Mapping[str, Any]], Any]:
    if isinstance(by, str):
        template = ArgumentTemplate(by, parameters, what)
        if not template.names:
            raise OptionError(f"{what} names no argument, got {by!r}; write it like '{{customer}}'")
        return template.fill
    if not callable(by):
        raise OptionError(f"{what} must be a function or a template like '{{customer}}', got {by!r}")
    names, defaults = tuple(inspect.signature(by).parameters), defaults_of(parameters or {})
    if parameters is not None:
        check_names(names, parameters, what)

    def make(arguments: Mapping[str, Any]) -> Any:
        known = {**defaults, **arguments}
        try:
            return by(**{name: known[name] for name in names})
        except Exception as error:
            raise PayloadError(f"{what} raised {type(error).__name__}: {error}") from error

    return make
