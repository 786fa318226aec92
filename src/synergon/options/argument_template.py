"""Options that are templates over a task's arguments, like `"{customer}"`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any, Final

from synergon.errors import OptionError, PayloadError

Parameters = Mapping[str, inspect.Parameter]


class ArgumentTemplate:
    """A template over arguments. Raises OptionError when it is made, if it is no template or names an unknown argument.

    `what` names the option in errors, as "limit_by of task 'greet'".
    """

    def __init__(self, template: str, parameters: Parameters | None, what: str) -> None:
        """If `parameters` is None, the function is not known here, and the names are not checked."""
        self._template = template
        self._what = what
        self._defaults = defaults_of(parameters or {})
        try:
            fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
        except ValueError as error:
            raise OptionError(f"{what} is no template: {error}; write it like '{{customer}}'") from error
        self.names: Final = tuple(dict.fromkeys(field.partition(".")[0].partition("[")[0] for field in fields))
        """The arguments that the template names."""
        if parameters is not None:
            check_names(self.names, parameters, what)

    def fill(self, arguments: Mapping[str, Any]) -> str:
        """The text for these arguments. Raises PayloadError if an argument does not have what the template uses."""
        known = {**self._defaults, **arguments}
        try:
            return self._template.format(**{name: known[name] for name in self.names})
        except Exception as error:
            raise PayloadError(f"{self._what} raised {type(error).__name__}: {error}") from error


def defaults_of(parameters: Parameters) -> dict[str, Any]:
    """The default values of the arguments that a call may leave out."""
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def check_names(names: Iterable[str], parameters: Parameters, what: str) -> None:
    """Raise OptionError for a name that is no argument of the task."""
    for name in names:
        if name not in parameters:
            raise OptionError(
                f"{what} asks for {name!r}, which is no argument of the task; it takes ({', '.join(parameters)})"
            )
