"""Reads requests: their bodies and queries, within limits, as checked records."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec
from starlette.requests import ClientDisconnect, Request

from synergon.model.record import READ_ERRORS
from synergon.policies import PAYLOAD_LIMIT_BYTES
from synergon.web.problems import Problem

BODY_BYTES: Final = PAYLOAD_LIMIT_BYTES + 64 * 1024
"""The largest body: the largest arguments of a task, and what is around them."""
BODY_SECONDS: Final = 10.0
HEADER_BYTES: Final = 16 * 1024
QUERY_BYTES: Final = 8 * 1024

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A moment with its time zone."""

Input = TypeVar("Input", bound=msgspec.Struct)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that takes no parameters."""


def check_headers(request: Request) -> None:
    """Raise Problem if the headers or the query are too long."""
    if sum(len(name) + len(value) for name, value in request.headers.raw) > HEADER_BYTES:
        raise Problem(431, f"the headers of a request have at most {HEADER_BYTES} bytes")
    if len(request.scope.get("query_string", b"")) > QUERY_BYTES:
        raise Problem(414, f"the query of a request has at most {QUERY_BYTES} bytes")


def read_query(request: Request, wanted: type[Input]) -> Input:
    """The query. Raises Problem if a name is unknown, given twice, or its value is wrong."""
    lists = _lists(wanted)
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise Problem(400, f"the parameter {name!r} is given twice")
        else:
            given[name] = value
    try:
        return msgspec.convert(given, wanted, strict=False)
    except READ_ERRORS as error:
        raise Problem(400, f"the query is wrong: {error}") from error


@cache
def _lists(wanted: type[msgspec.Struct]) -> frozenset[str]:
    """The parameters that may be given several times."""
    return frozenset(
        field.name
        for field in msgspec.structs.fields(wanted)
        if any(get_origin(part) is tuple for part in (field.type, *get_args(field.type)))
    )


async def read_body(request: Request, wanted: type[Input]) -> Input:
    """The body, which is a JSON object or empty. Raises Problem if it is too large, too late, or wrong."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, f"a change is requested with Content-Type: application/json, got {media_type!r}")
    text = await read_bytes(request)
    try:
        return msgspec.json.decode(text or b"{}", type=wanted)
    except msgspec.ValidationError as error:
        raise Problem(400, f"the body does not fit: {error}") from error
    except READ_ERRORS as error:
        raise Problem(400, f"the body is no JSON: {error}") from error


async def read_bytes(request: Request, most: int = BODY_BYTES) -> bytes:
    """The body. Raises Problem if it is too large or too late."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
    except ClientDisconnect:
        raise Problem(400, "the client disconnected before the end of the body") from None
    return b"".join(parts)


def _too_large(most: int) -> Problem:
    return Problem(413, f"a body has at most {most} bytes; store it elsewhere and pass a reference")
