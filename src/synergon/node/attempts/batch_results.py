"""The results of a batch: what the task function returned or raised, divided among its items."""

from __future__ import annotations

from typing import Any, NamedTuple

from synergon.errors import BatchErrors, PayloadError
from synergon.model.outcomes import ErrorRecord
from synergon.options.json_types import with_article
from synergon.options.payload import Signature


class DescribedError(NamedTuple):
    """The error of an item that ran in a child process, and whether its kind retries errors of this type."""

    error: ErrorRecord
    is_retried: bool


ItemEnd = bytes | BaseException | DescribedError
"""The encoded result of an item, or its error."""


def ends_of_items(
    signature: Signature, kind: str, count: int, value: Any, error: BatchErrors | None = None
) -> list[bytes | BaseException]:
    """The result or the error of each item, in the order of the list that the function got. Raises PayloadError if the
    function returned anything but None or one result for each item, or named an item that does not exist."""
    if error is not None:
        return _of_errors(signature, kind, count, error)
    if value is None:
        return [signature.encode_result(None)] * count
    if not isinstance(value, list | tuple) or len(value) != count:
        returned = f"{len(value)} results" if isinstance(value, list | tuple) else with_article(type(value).__name__)
        raise PayloadError(
            f"task {kind!r} ran a batch of {count} items and returned {returned}; return nothing, or a list with one "
            "result for each item, in their order"
        )
    return [_encoded(signature, result) for result in value]


def _encoded(signature: Signature, result: Any) -> bytes | BaseException:
    try:
        return signature.encode_result(result)
    except PayloadError as misfit:  # the other items have succeeded
        return misfit


def _of_errors(signature: Signature, kind: str, count: int, error: BatchErrors) -> list[bytes | BaseException]:
    wrong = [index for index in error.errors if index >= count]
    if wrong:
        raise PayloadError(
            f"task {kind!r} ran a batch of {count} items and raised BatchErrors for item {wrong[0]}; items "
            "are counted from 0"
        )
    ends: list[bytes | BaseException] = [signature.encode_result(None)] * count
    for index, failure in error.errors.items():
        ends[index] = failure
    return ends
