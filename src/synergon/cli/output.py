"""Output of the command line: tables and sentences for people, or JSON for programs.

Results go to stdout; errors, warnings and progress go to stderr. Colours are used only on a terminal. Text from the
database is never interpreted as markup, and its control characters are escaped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Column, Table
from rich.text import Text

from synergon.model.lifecycle import State
from synergon.model.printable import printable, printable_json
from synergon.model.record import Record
from synergon.options.durations import rough

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.progress import Progress

STATE_STYLES: Final = {
    State.WAITING: "dim",
    State.SCHEDULED: "yellow",
    State.READY: "bold",
    State.RUNNING: "cyan",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.CANCELLED: "dim",
}

_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))

UNLIMITED_COLUMNS: Final = 100_000
SHRUNK_COLUMNS: Final = 8
"""How narrow an elastic column becomes before other columns are left out."""
PADDING: Final = 2


class Output(Console):
    """A console that cuts and wraps nothing if its output is no terminal, unless $COLUMNS says how wide it is."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and rows."""
        found = super().size
        if self.is_terminal or "COLUMNS" in os.environ:
            return found
        return ConsoleDimensions(UNLIMITED_COLUMNS, found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        """Fix columns and rows."""
        self._width, self._height = new_size


console: Final = Output(markup=False, highlight=False, emoji=False)
stderr: Final = Console(markup=False, highlight=False, emoji=False, stderr=True)


def print_line(line: str | Text = "") -> None:
    """Print a line on stdout. It is not wrapped, because the terminal does that."""
    console.print(_one_line(line), soft_wrap=True)


def print_lines(text: str) -> None:
    """Print text that may have several lines on stdout, with control characters escaped."""
    console.print(Text(printable(text, lines=True)), soft_wrap=True)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error on stderr."""
    stderr.print(Text(printable("".join(format_exception(error)), lines=True)), soft_wrap=True, end="")


def print_error(message: str) -> None:
    """Print an error as one line on stderr."""
    said = printable(message)
    stderr.print(Text("error: ", style="bold red").append(said, style="not bold default"), soft_wrap=True)


def _one_line(text: str | Text) -> Text:
    """The text on one line, with control characters escaped."""
    if isinstance(text, str):
        return Text(printable(text))
    safe = printable(text.plain)
    if safe != text.plain:
        text.plain = safe
    return text


class PrintableTable(Table):
    """A table in whose cells control characters are escaped, and in which names stay whole on a narrow terminal.

    The columns that may wrap shrink. If that is not enough, dispensable columns are left out. If the rest is still too
    wide, its lines are longer than those of the terminal.
    """

    dispensable: tuple[str, ...] = ()
    """The headings of columns that are left out on a narrow terminal, the first one first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._leave_out(options.max_width)
        yield from super().__rich_console__(console, options.update_width(max(options.max_width, self._least_width())))

    def _leave_out(self, width: int) -> None:
        """Keep as many of the dispensable columns as fit beside the others; the last ones first."""
        widths = {str(column.header): _least_width_of(column) for column in self.columns}
        free_width = width + PADDING - sum(widths[heading] for heading in widths.keys() - set(self.dispensable))
        left_out = set()
        for heading in reversed(self.dispensable):
            if widths.get(heading, 0) <= free_width:
                free_width -= widths.get(heading, 0)
            else:
                left_out.add(heading)
        shown = [column for column in self.columns if str(column.header) not in left_out]
        # rich tells by the index which column is the last.
        self.columns[:] = [replace(column, _index=index) for index, column in enumerate(shown)]

    def _least_width(self) -> int:
        """The width at which no column but the elastic ones is cut."""
        return sum(map(_least_width_of, self.columns)) - PADDING  # none after the last column

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        """Add a row. Control characters in its cells are escaped."""
        super().add_row(*(_one_line(cell) if isinstance(cell, str | Text) else cell for cell in cells), **settings)


def _least_width_of(column: Column) -> int:
    """The width below which a column is not cut, with its padding."""
    heading = cell_len(str(column.header))
    widest = max([heading, *(cell_len(str(cell)) for cell in column.cells)])
    return PADDING + (widest if column.no_wrap else min(widest, max(heading, SHRUNK_COLUMNS)))


def is_debugging() -> bool:
    """Whether the variable SYNERGON_DEBUG is set, so that tracebacks are printed."""
    return os.environ.get("SYNERGON_DEBUG", "") not in ("", "0")


# ---------------------------------------------------------------- for programs


def write_json(value: Any) -> None:
    """Write one JSON document."""
    _write(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2))


def write_json_lines(values: Iterable[Any]) -> None:
    """Write one JSON document per line."""
    for value in values:
        _write(msgspec.json.encode(_plain(value)))


def _plain(value: Any) -> Any:
    return value.as_dict() if isinstance(value, Record) else value


def _write(document: bytes) -> None:
    sys.stdout.buffer.write(printable_json(document) + b"\n")
    sys.stdout.buffer.flush()


# ---------------------------------------------------------------- for people


def show_list(found: Sequence[Any], table: Callable[[], Table], *, as_json: bool, nothing: str) -> None:
    """Print records as JSON lines or as a table. Without records, the table is replaced by the text `nothing`."""
    if as_json:
        write_json_lines(found)
    elif found:
        print_table(table())
    else:
        print_line(nothing)


def print_table(table: Table) -> None:
    """Print a table on stdout. The terminal wraps lines that are too long for it."""
    console.print(table, crop=False)


def new_table(
    *headings: str, numbers: Iterable[str] = (), elastic: Iterable[str] = (), dispensable: Iterable[str] = ()
) -> Table:
    """A table without rules. Columns in `numbers` are right-aligned. On a narrow terminal, the columns in `elastic`
    (see `short`) shrink, the widest first; the others keep their width. If that is not enough, the columns in
    `dispensable` are left out, the first one first. So names stay whole if their column is not elastic."""
    table = PrintableTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    right, shrinking = set(numbers), set(elastic)
    table.dispensable = tuple(dispensable)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=heading not in shrinking)
    return table


def short(text: str) -> Text:
    """A cell of an elastic column. It is truncated, not wrapped."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def new_facts() -> Table:
    """A table with names on the left and values on the right. Long values are wrapped."""
    table = PrintableTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def state_text(state: State) -> Text:
    """The state in its colour."""
    return Text(state, style=STATE_STYLES[state])


def duration(seconds: float | None) -> str:
    """A duration as text: `250 ms`, `3 s`, `5 min`, `2.5 h`, `7 d`, or `none`."""
    if seconds is None:
        return "none"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{_short(seconds / length)} {unit}"
    return f"{_short(seconds)} s"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def relative(moment: datetime, now: datetime) -> str:
    """A time relative to now as text: `3 s ago`, `in 5 min`, `now`."""
    seconds = round((moment - now).total_seconds())
    if seconds == 0:
        return "now"
    distance = rough(abs(seconds))
    return f"in {distance}" if seconds > 0 else f"{distance} ago"


def absolute(moment: datetime, now: datetime) -> str:
    """A time in the local time zone, and relative to now."""
    return f"{moment.astimezone().isoformat(sep=' ', timespec='milliseconds')} ({relative(moment, now)})"


def size(count: float) -> str:
    """A number of bytes as text: `640 KiB`, `12.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{_short(count)} {unit}"
        count /= 1024
    return f"{_short(count)} TiB"


def plural(count: int, noun: str) -> str:
    """A number with its noun: `1 task`, `2 tasks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def new_progress() -> Progress:
    """A progress bar on stderr, which is removed at the end. It is not shown if stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
