"""Values as people read them: times, durations, numbers, JSON. The templates use these functions as filters."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from synergon.options.durations import rough

HIDDEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a browser does not show, or that change the direction of the text around them."""

UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


def visible(value: Any) -> Any:
    """A text with its hidden characters as escapes, like `\\x1b`. Templates do this to all values."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return HIDDEN.sub(lambda found: ascii(found[0])[1:-1], value)


def moment(value: str | datetime | None) -> datetime | None:
    """A moment of a document as a datetime. None if there is none."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value)


def relative(value: str | datetime | None, now: datetime | None = None) -> str:
    """A moment as seen from now: `12 s ago`, `in 5 min`, `now`. The script of the page has the same rule."""
    found = moment(value)
    if found is None:
        return ""
    distance = ((now or datetime.now(UTC)) - found).total_seconds()
    if round(abs(distance)) == 0:
        return "now"
    return f"{rough(distance)} ago" if distance > 0 else f"in {rough(-distance)}"


def exact(value: str | datetime | None) -> str:
    """A moment with its time zone, to the second."""
    found = moment(value)
    return "" if found is None else f"{found.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float | None) -> str:
    """A duration with three digits: `4.2 ms`, `12.3 s`, `5 min 12 s`, `3 h 4 min`."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (unit, length), (small, part) in (
        (("d", 86400), ("h", 3600)),
        (("h", 3600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit} {rest} {small}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"


def interval(value: str | None) -> str:
    """A duration of a document, which has the form of ISO 8601."""
    return "" if value is None else duration(msgspec.convert(value, timedelta, strict=False).total_seconds())


def interval_option(value: str | None) -> str:
    """A duration of a document as users write it: `15m`, `2h`, `1.5s`."""
    if value is None:
        return ""
    found = msgspec.convert(value, timedelta, strict=False).total_seconds()
    units = (("d", 86400), ("h", 3600), ("m", 60))
    unit, length = next(((unit, length) for unit, length in units if found and found % length == 0), ("s", 1))
    return f"{found / length:g}{unit}"


def between(start: str | None, end: str | None) -> float | None:
    """The seconds between two moments of a document; until now if `end` is None. None if `start` is."""
    first, last = moment(start), moment(end) or datetime.now(UTC)
    return None if first is None else max((last - first).total_seconds(), 0.0)


def number(value: float | None) -> str:
    """A number with thin spaces between thousands."""
    if value is None:
        return "–"
    return (
        f"{value:,.0f}".replace(",", "\u202f") if float(value).is_integer() else f"{value:,.2f}".replace(",", "\u202f")
    )


def size(value: float) -> str:
    """A number of bytes with its unit."""
    for unit in UNITS:
        if abs(value) < 1000 or unit == UNITS[-1]:
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError


def pretty_json(value: Any) -> str:
    """A JSON value over several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def one_line(value: Any) -> str:
    """A JSON value on one line; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def attribute_json(value: Any) -> str:
    """A JSON value for an attribute that a script reads: every hidden character is an escape of JSON."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 task`, `2 tasks`."""
    return f"{number(count)} {noun if count == 1 else noun + 's'}"
