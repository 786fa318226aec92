"""Errors of the web API as `application/problem+json` (RFC 9457): which status an error has, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from synergon.errors import (
    ConfigurationError,
    DataRejected,
    EventsLost,
    IllegalMove,
    KeyConflict,
    NameNotFound,
    NotAvailable,
    NotConnected,
    PayloadError,
    PermissionDenied,
    ScheduleError,
    ScheduleExists,
    ScheduleNotFound,
    StoreError,
    StoreUnavailable,
    SynergonError,
    TaskDeleted,
    TaskError,
    TaskNotFound,
)
from synergon.model.record import storable
from synergon.web.json_text import encode

MEDIA_TYPE: Final = "application/problem+json"

RETRY_SECONDS: Final = 5
"""When a client should try again while the database is unavailable."""

STATUSES: Final[tuple[tuple[type[SynergonError], int], ...]] = (
    (NameNotFound, 404),
    (TaskNotFound, 404),
    (TaskDeleted, 404),
    (ScheduleNotFound, 404),
    (IllegalMove, 409),
    (KeyConflict, 409),
    (ScheduleExists, 409),
    (PayloadError, 422),
    (DataRejected, 422),
    (EventsLost, 410),
    (StoreUnavailable, 503),
    (NotConnected, 503),
    (PermissionDenied, 403),
    (NotAvailable, 501),
    (ConfigurationError, 400),
)
"""The status of each error of the engine. An error that is none of these is a fault of the server: 500."""

HIDDEN: Final[Mapping[int, str]] = {
    403: "the database role of this server may not do this; the log of the server has the details",
    500: "the server failed; its log has the details",
    503: "the database is unavailable; try again in a moment",
}
"""The text by status that replaces the text of an error, which may name hosts or roles of the database."""


class Problem(Exception):
    """An error that is answered with this status. `more` has further members of the answer."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: dict[str, str] = dict(headers or {})
        self.more = more

    def document(self) -> dict[str, Any]:
        """The answer as plain JSON values."""
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": storable(self.detail),
            **self.more,
        }

    def response(self) -> Response:
        """The answer."""
        return Response(encode(self.document()), self.status, self.headers, MEDIA_TYPE)


def problem_of(error: SynergonError) -> Problem:
    """The answer to an error of the engine."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    if isinstance(error, StoreError) and status in HIDDEN:
        headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None
        return Problem(status, HIDDEN[status], headers=headers)
    more: dict[str, Any] = {}
    if isinstance(error, TaskError) and error.task_id:
        more["task_id"] = error.task_id
    if isinstance(error, ScheduleError):
        more["schedule"] = error.name
    return Problem(status, HIDDEN[500] if status == 500 else str(error), **more)
