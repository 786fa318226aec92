"""HttpService: the routes that an HttpServer serves. The server limits what a connection may cost; the service knows
the routes."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec

BINARY: Final = b"application/octet-stream"
TEXT: Final = b"text/plain; charset=utf-8"
JSON: Final = b"application/json"


class HttpAnswer(msgspec.Struct, frozen=True):
    """The answer to one request."""

    body: bytes
    media_type: bytes = BINARY
    status: int = 200


class HttpService(Protocol):
    """The routes of a server. The methods are called on the server's event loop and do not block it."""

    @property
    def method(self) -> str:
        """The only method of the routes."""

    @property
    def headers(self) -> Mapping[bytes, str]:
        """The headers that the service needs: the names of fields, by the names of their headers in lower case."""

    @property
    def body_limit(self) -> int:
        """The maximum size in bytes of the body of a request."""

    @property
    def answer_limit(self) -> int | None:
        """How many bytes of answers may wait for a client that does not read them. None means the default of
        asyncio."""

    @property
    def is_verifying(self) -> bool:
        """Whether an answered request proves that the connection belongs to a peer."""

    def check(self, method: str, path: str, fields: Mapping[str, str]) -> None:
        """Raise Rejected if there is no such path or method, or a header is missing. Called before the body is read."""

    def answer(self, path: str, fields: Mapping[str, str], body: bytes) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        """The answer to a request, or a coroutine that makes it. Raises Rejected if the request is not accepted."""
