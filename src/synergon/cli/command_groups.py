"""Helpers for command groups that can be called without a command: `synergon limits` means `synergon limits list`."""

from __future__ import annotations

import typer

from synergon.errors import OptionError


def has_no_subcommand(context: typer.Context, *, has_options: bool) -> bool:
    """Whether the group was called without a command. Raises OptionError for options before a command, which would be
    ignored."""
    if context.invoked_subcommand is None:
        return True
    if has_options:
        raise OptionError(
            f"options go after the command: `{context.command_path} {context.invoked_subcommand} ... OPTIONS`"
        )
    return False


def number_or_none(value: str, what: str) -> int | None:
    """Parse a number, or `none` for no limit."""
    if value.lower() == "none":
        return None
    if not (value.isascii() and value.isdigit()):
        raise OptionError(f"{what} must be a whole number from 0 on, or none for no limit, got {value!r}")
    return int(value)


def shown_limit(value: int | None) -> str:
    """A limit as text: its number, "closed" for 0, or "none" for None."""
    if value is None:
        return "none"
    return str(value) if value else "closed"
