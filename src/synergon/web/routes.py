"""Routes of the web API. The tables of routes drive the routing, the access, the OpenAPI document and the tests: a
route that is not in a table does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request

from synergon.engine import Engine
from synergon.web.access import Access, Role, User
from synergon.web.inputs import Nothing
from synergon.web.redaction import Redactor

PREFIX: Final = "/api/v1"
KEY_HEADER: Final = "idempotency-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A permitted request, read and checked."""

    engine: Engine
    """The engine that answers. It has connections of its own."""
    app_engine: Engine
    """The engine of the application, which knows the kinds."""
    access: Access
    request: Request
    user: User
    path: dict[str, Any]
    """The values in the path, by name."""
    query: Any
    body: Any
    redactor: Redactor


Handler = Callable[[ApiCall], Awaitable[Any]]
"""Answers a call: with plain JSON values, or with a response of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation of the web API."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    """The path below `PREFIX`. `{task_id:int}` is a number, `{name:path}` any text."""
    role: Role
    handle: Handler
    answer: Any
    """The type of the answer, for the OpenAPI document: a record, a struct or a JSON Schema."""
    query: type[msgspec.Struct] = Nothing
    body: type[msgspec.Struct] | None = None
    """The type of the body. A POST has one in any case, which may be empty."""
    problems: tuple[int, ...] = ()
    """The statuses of errors that belong to this operation."""
    status: int = 200
    other_status: int | None = None
    """The status if there was nothing to create."""
    media_type: str = "application/json"
    lines_type: str | None = None
    """The media type of an answer with one document on each line, for callers that accept it."""
    is_long: bool = False
    """Whether the answer may take longer than others. The handler bounds its time itself."""
    takes_key: bool = False
    """Whether the operation takes the header `Idempotency-Key`."""

    @property
    def name(self) -> str:
        """The name of the operation in the OpenAPI document."""
        return self.handle.__name__

    @property
    def summary(self) -> str:
        """The first paragraph of the handler's docstring."""
        return " ".join((self.handle.__doc__ or "").partition("\n\n")[0].split())

    @property
    def is_change(self) -> bool:
        """Whether the operation changes something."""
        return self.method != "GET"
