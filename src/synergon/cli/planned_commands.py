"""Commands that are planned but not available yet. They fail with a message of their own, not with "no such
command"."""

from __future__ import annotations

from typing import Final

import typer

from synergon.errors import NotAvailable

NAMES: Final = ("dashboard", "top")


def add(commands: typer.Typer, name: str) -> None:
    """Add a hidden command that fails, whatever its arguments."""

    def fail() -> None:
        raise NotAvailable(f"`synergon {name}` is not in this release of synergon")

    any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
    commands.command(name, hidden=True, context_settings=any_arguments, help="Not in this release.")(fail)
