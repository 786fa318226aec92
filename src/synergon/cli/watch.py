"""`--watch`: a command that lists shows its list again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.text import Text
from typer.core import TyperCommand

from synergon.cli.database import run_connected
from synergon.cli.output import console, print_error
from synergon.cli.screen import has_terminal, refresh
from synergon.engine import Engine
from synergon.errors import StoreUnavailable

Found = TypeVar("Found")

DEFAULT_SECONDS: Final = "2"
LEAST_SECONDS: Final = 0.1

WatchOption = Annotated[
    float | None,
    typer.Option(
        "--watch",
        metavar="[SECONDS]",
        min=LEAST_SECONDS,
        help=f"Show the list again after this time, {DEFAULT_SECONDS} if none is given, until q or Ctrl-C.",
    ),
]


class WatchCommand(TyperCommand):
    """A command whose option --watch may have no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default after a --watch that no number follows."""
        given = list(args)
        for position, word in enumerate(args):
            if word == "--watch" and not _is_number(args[position + 1 : position + 2]):
                given.insert(position + 1 + len(given) - len(args), DEFAULT_SECONDS)
        return super().parse_args(ctx, given)


def _is_number(words: list[str]) -> bool:
    try:
        return bool(words) and float(words[0]) is not None
    except ValueError:
        return False


def run_watched(
    app: str | None,
    url: str | None,
    read: Callable[[Engine], Coroutine[Any, Any, Found]],
    show: Callable[[Found], None],
    watch: float | None,
    *,
    as_json: bool,
) -> None:
    """Read with a connected engine and show what was found; with `watch`, again after that number of seconds.

    On a terminal each list replaces the previous one. JSON, and output without a terminal, is appended. While the
    database is unavailable, the last list stays, and a line says so.
    """
    if watch is None:
        show(run_connected(app, url, read))
    else:
        run_connected(
            app, url, lambda engine: _watch(engine, read, show, watch, is_replaced=has_terminal() and not as_json)
        )


async def _watch(
    engine: Engine,
    read: Callable[[Engine], Coroutine[Any, Any, Found]],
    show: Callable[[Found], None],
    seconds: float,
    *,
    is_replaced: bool,
) -> None:
    shown = Text()
    problem = ""

    async def read_again() -> None:
        nonlocal shown, problem
        try:
            found = await read(engine)
        except StoreUnavailable as error:
            problem = f"the database cannot be used: {error}"
            return
        problem = ""
        with console.capture() as captured:
            show(found)
        shown = Text.from_ansi(captured.get())

    def draw() -> Text:
        return Text(f"{problem}\n", style="red") + shown if problem else shown

    if is_replaced:
        await refresh(seconds, read_again, draw, lambda key: key != "q")
        return
    while True:
        try:
            show(await read(engine))
        except StoreUnavailable as error:
            print_error(f"the database cannot be used: {error}")
        await asyncio.sleep(seconds)
