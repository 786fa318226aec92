"""The HTTP protocol of the server, with a bound on the time in which the headers of a request arrive.

uvicorn itself has no such bound: a client that sends one character a minute would keep its connection for ever.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS: Final = 10.0


class HttpProtocol(H11Protocol):
    """Closes connections whose request does not arrive in time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self._late is None and self._is_waiting():
            self._expect_headers()
        super().data_received(data)
        if not self._is_waiting():
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for a request: the connection is closed."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        """Whether no request is being answered: the next one has not arrived, or not all of its headers."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_headers(self) -> None:
        self._late = asyncio.get_running_loop().call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close(self) -> None:
        self._late = None
        if self._is_waiting() and not self.transport.is_closing():
            self.transport.close()
