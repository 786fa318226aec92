"""Command groups that list when they are called without a command: `synergon limits` means `synergon limits list`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from synergon.errors import OptionError


class ListGroup(TyperGroup):
    """A group whose command `list` may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `list` if the first argument is missing or an option other than --help."""
        if not args or (args[0].startswith("-") and "--help" not in args):
            if named := next((name for name in args if name in self.commands), None):
                raise OptionError(f"options go after the command: `{ctx.command_path} {named} ... OPTIONS`")
            args = ["list", *args]
        return super().parse_args(ctx, args)


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
