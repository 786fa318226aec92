"""The base class of records, and conversions of times and texts.

Inside the engine, times are whole microseconds since 1970 by the store's clock. Records for users contain aware
datetimes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

READ_ERRORS: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""The errors that a decoder raises if it cannot read a document: it is malformed, has another shape, or is nested too
deeply."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """Convert microseconds since 1970 to an aware datetime, exactly."""
    return EPOCH + timedelta(microseconds=microseconds)


def from_datetime(moment: datetime) -> int:
    """Convert an aware datetime to whole microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def is_storable(text: str) -> bool:
    """Whether every database accepts the text: it has no NUL and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def storable(text: str) -> str:
    """Replace lone surrogates in a text by escapes, because no database stores them."""
    return text.encode(errors="backslashreplace").decode()


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base class of records. No record can refer to itself, so the garbage collector does not track them."""

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, for `json.dumps` and web frameworks. Moments and durations are texts in ISO
        8601."""
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return decoded


MOMENTS: Final = range(*(from_datetime(datetime(year, 1, 1, tzinfo=UTC)) for year in (1900, 3000)))
"""The allowed moments. Others are infinite in PostgreSQL or invalid in other time zones, and would break listings."""
