"""Commands that are coming. Until they work they are refused, not ignored."""

from __future__ import annotations

from typing import Final

import typer

from synergon.errors import NotAvailable

NAMES: Final = ("dashboard", "top")


def add(commands: typer.Typer, name: str) -> None:
    """A hidden command that says that it is not there, whatever it is given."""

    def refuse() -> None:
        raise NotAvailable(f"`synergon {name}` is not in this release of synergon")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    commands.command(name, hidden=True, context_settings=anything, help="Not in this release.")(refuse)
