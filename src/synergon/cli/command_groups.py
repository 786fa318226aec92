"""Groups of commands that are commands themselves: `synergon limits` is `synergon limits list`."""

from __future__ import annotations

import typer

from synergon.errors import OptionError


def is_alone(context: typer.Context, *, has_options: bool) -> bool:
    """Whether the group was given without one of its commands. Options in front of a command would mean nothing."""
    if context.invoked_subcommand is None:
        return True
    if has_options:
        raise OptionError(
            f"options go behind the command: `{context.command_path} {context.invoked_subcommand} ... OPTIONS`"
        )
    return False


def number_or_none(value: str, what: str) -> int | None:
    """A number that was given as text; `none` for no limit."""
    if value.lower() == "none":
        return None
    if not (value.isascii() and value.isdigit()):
        raise OptionError(f"{what} must be a whole number from 0 on, or none for no limit, got {value!r}")
    return int(value)


def shown_limit(value: int | None) -> str:
    """How many at once, in words where a number says too little."""
    if value is None:
        return "none"
    return str(value) if value else "closed"
