"""`synergon top`: nodes, queues, kinds, running tasks and rates on one screen that changes by itself."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from synergon.cli.database import AppOption, UrlOption, run_connected
from synergon.cli.output import console, plural, relative
from synergon.cli.screen import ESCAPE, has_terminal, refresh
from synergon.cli.top_tables import TABLES, Rates, Reading, TopTable, heights, names_of, read_cluster
from synergon.engine import Engine
from synergon.errors import OptionError, StoreUnavailable
from synergon.model.lifecycle import State
from synergon.model.printable import printable

ALL: Final = "all"
VIEWS: Final = (ALL, *TABLES)
SHOWN_PROBLEMS: Final = 3
ENTER: Final = ("\n", "\r")
BACKSPACE: Final = ("\x7f", "\b")
PLAIN_HEIGHT: Final = 50
"""The lines of the one screen that is printed where there is no terminal."""

IntervalOption = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often to read the database.")
]
ViewOption = Annotated[str, typer.Option("--view", metavar="NAME", help=f"What to begin with: {', '.join(VIEWS)}.")]
FilterOption = Annotated[str, typer.Option("--filter", metavar="TEXT", help="Show only rows with this text.")]


def top(
    interval: IntervalOption = 2.0,
    view: ViewOption = ALL,
    wanted: FilterOption = "",
    app: AppOption = None,
    url: UrlOption = None,
) -> None:
    """Watch nodes, queues, kinds, running tasks and rates.

    Keys: 1 to 5 choose a view, s sorts it by the next column, r reverses the order, / filters by a text, Escape ends
    the filter, Space stops and continues the reading, q quits. Without a terminal it prints one screen and ends.
    """
    if view not in VIEWS:
        raise OptionError(f"--view is one of {', '.join(VIEWS)}, got {view!r}")

    async def run(engine: Engine) -> None:
        shown = Top(view, wanted)
        if not has_terminal():
            shown.add(await read_cluster(engine))
            console.print(shown.draw(PLAIN_HEIGHT), soft_wrap=False)
            return

        async def read() -> None:
            if shown.is_stopped:
                return
            try:
                shown.add(await read_cluster(engine))
            except StoreUnavailable as error:
                shown.problem = f"the database cannot be used: {error}"

        await refresh(interval, read, lambda: shown.draw(console.height), shown.press)

    run_connected(app, url, run)


class Top:
    """The contents of the screen, and the view, order and filter that keys have chosen."""

    def __init__(self, view: str = ALL, wanted: str = "") -> None:
        self.view: str = view
        self.wanted: str = wanted
        """The text that rows must contain."""
        self.is_typing: bool = False
        """Whether keys are characters of the wanted text."""
        self.is_stopped: bool = False
        self.sort: dict[str, str | None] = dict.fromkeys(TABLES)
        """The heading by which each table is sorted. None: the order in which the rows come."""
        self.is_reversed: dict[str, bool] = dict.fromkeys(TABLES, False)
        self.problem: str = ""
        """Why there is no newer reading."""
        self._rates = Rates()
        self._reading: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Show another reading from now on."""
        self._rates.add(reading)
        self._reading, self.problem = reading, ""

    # ------------------------------------------------------------ keys

    def press(self, key: str) -> bool:
        """Obey a key. False if it ends the program."""
        if self.is_typing:
            self._type(key)
            return True
        if key == "q":
            return False
        if key.isdigit() and 1 <= int(key) <= len(VIEWS):
            self.view = VIEWS[int(key) - 1]
        elif key == "s":
            self._sort_by_next()
        elif key == "r":
            for name in self._shown():
                self.is_reversed[name] = not self.is_reversed[name]
        elif key == "/":
            self.is_typing = True
        elif key == ESCAPE:
            self.wanted = ""
        elif key == " ":
            self.is_stopped = not self.is_stopped
        return True

    def _type(self, key: str) -> None:
        if key in ENTER:
            self.is_typing = False
        elif key == ESCAPE:
            self.is_typing, self.wanted = False, ""
        elif key in BACKSPACE:
            self.wanted = self.wanted[:-1]
        elif key.isprintable():
            self.wanted += key

    def _sort_by_next(self) -> None:
        """Sort by the next column; numbers begin with the largest. In the view of all tables: the running tasks."""
        name = "tasks" if self.view == ALL else self.view
        table = self._table(name)
        headings = [None, *(heading for heading in table.headings if heading)]
        chosen = headings[(headings.index(self.sort[name]) + 1) % len(headings)]
        self.sort[name] = chosen
        self.is_reversed[name] = chosen in table.numbers

    def _shown(self) -> tuple[str, ...]:
        return tuple(TABLES) if self.view == ALL else (self.view,)

    # ------------------------------------------------------------ the picture

    def _table(self, name: str) -> TopTable:
        if self._reading is None:
            return TopTable((), [])
        table = TABLES[name](self._reading, self._rates)
        return table.arranged(sort=self.sort[name], is_reversed=self.is_reversed[name], wanted=self.wanted)

    def draw(self, height: int) -> RenderableType:
        """The picture, in as many lines as the height."""
        if self._reading is None:
            return Text(self.problem or "reading ...")
        head = [self._summary(self._reading), *self._problems(self._reading)]
        tables = {name: self._table(name) for name in self._shown()}
        given = heights([max(len(table.rows), 1) + 2 for table in tables.values()], height - len(head) - 1)
        parts: list[RenderableType] = [*head]
        for (name, table), lines in zip(tables.items(), given, strict=True):
            parts += self._part(name, table, lines)
        used = len(head) + sum(given)
        blank = [Text("")] * max(height - used - 1, 0) if has_terminal() else []
        return Group(*parts, *blank, self._last_line())

    def _part(self, name: str, table: TopTable, lines: int) -> list[RenderableType]:
        if lines < 2:
            return [Text("")] * lines
        hidden = len(table.rows) - (lines - 2) + table.more
        title = Text(name, style="bold reverse")
        title.append(f" {len(table.rows) + table.more}", style="not reverse")
        if hidden > 0 and table.rows:
            title.append(f", {hidden} not shown", style="not reverse not bold dim")
        if self.sort[name] is not None:
            title.append(f", by {self.sort[name]}", style="not reverse not bold dim")
        title.no_wrap, title.overflow = True, "ellipsis"
        if not table.rows:
            return [title, Text("none", style="dim"), *[Text("")] * (lines - 2)]
        return [title, table.drawn(lines - 1)]

    def _summary(self, reading: Reading) -> Text:
        alive = sum(worker.is_alive for worker in reading.status.workers)
        failed = sum(reading.status.failures_last_hour.values())
        ended = sum(self._rates.ended.values())
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{reading.status.now.astimezone():%H:%M:%S}  {plural(alive, 'node')}  ", style="bold")
        line.append(f"{reading.total(State.READY)} ready  {reading.running_total} running  {ended:.1f} ends/s  ")
        line.append(f"{failed} failed/h", style="red" if failed else "")
        for state in (State.SCHEDULED, State.WAITING):
            if reading.total(state):
                line.append(f"  {reading.total(state)} {state}")
        if reading.counted_at is not None:
            line.append(f"  (counted {relative(reading.counted_at, reading.status.now)})", style="dim")
        return line

    def _problems(self, reading: Reading) -> list[Text]:
        found = [self.problem] if self.problem else []
        found += reading.status.problems
        if len(found) > SHOWN_PROBLEMS:
            found = [*found[: SHOWN_PROBLEMS - 1], f"{len(found) - SHOWN_PROBLEMS + 1} more; see `synergon status`"]
        return [Text(printable(problem), style="red", no_wrap=True, overflow="ellipsis") for problem in found]

    def _last_line(self) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        if self.is_typing:
            return line.append(f"filter: {printable(self.wanted)}_", style="bold")
        if self.wanted:
            line.append(f"filter: {printable(self.wanted)}  ", style="bold")
        if self.is_stopped:
            line.append("stopped  ", style="bold yellow")
        return line.append(f"{names_of(TABLES)}  s sort  r reverse  / filter  q quit", style="dim")
