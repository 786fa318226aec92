"""Pages of the dashboard: routes whose handlers return a template and its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from synergon.web.access import Role
from synergon.web.inputs import Nothing
from synergon.web.routes import ApiCall, Handler, Route


@dataclass(frozen=True, slots=True)
class Page:
    """The return value of a page's handler: a template and its values."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    refresh_seconds: int = 2
    """How often the page asks for changes. Pages that read more ask less often."""


def page(path: str, handle: Handler, query: type[msgspec.Struct] = Nothing) -> Route:
    """The route of a page, for callers who may read."""
    return Route(
        method="GET", path=path, role=Role.READ, handle=handle, answer=str, query=query, media_type="text/html"
    )


async def asked(call: ApiCall, handler: Handler, query: msgspec.Struct | None = None, **path: Any) -> Any:
    """Call a handler of the HTTP API for this caller, and return its answer: documents without secrets."""
    return await handler(replace(call, query=query, path=path))
