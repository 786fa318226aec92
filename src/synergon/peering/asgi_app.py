"""PeerApp: receives messages of peers in the application's own web server.

The web server limits connections, headers and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from synergon.peering.http_headers import NAMES, check_headers
from synergon.peering.signatures import METHOD, Envelope
from synergon.peering.transport import Deliver, Rejected
from synergon.peering.wire import PATH, SIZE_LIMIT

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class PeerApp:
    """An ASGI app with the single route `POST /peer/v1`. Mount it in another app, or serve it alone."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the start and end of the server."""
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await _follow_lifespan(receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = self._deliver(await _envelope(scope, receive))
            await asyncio.sleep(0)  # lets the tasks woken by the message run first; the answer is less urgent
        except Rejected as rejection:
            await _respond(send, rejection.status, b"text/plain; charset=utf-8", str(rejection).encode())
        else:
            await _respond(send, 200, b"application/octet-stream", answer)


async def _follow_lifespan(receive: Receive, send: Send) -> None:
    message = {"type": ""}
    while message["type"] != "lifespan.shutdown":
        message = dict(await receive())
        await send({"type": f"{message['type']}.complete"})


async def _respond(send: Send, status: int, media_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))]
    if status == 405:
        headers.append((b"allow", METHOD.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _envelope(scope: Scope, receive: Receive) -> Envelope:
    if scope["path"].removeprefix(scope.get("root_path", "")) != PATH:
        raise Rejected(404, f"the only path here is {PATH}")
    if scope["method"] != METHOD:
        raise Rejected(405, f"the only method here is {METHOD}")
    # Reversed, so that of several headers with one name the first remains.
    fields = {NAMES[name]: value.decode("latin-1") for name, value in reversed(scope["headers"]) if name in NAMES}
    check_headers(fields)
    return Envelope(body=await _body(receive), **fields)


async def _body(receive: Receive) -> bytes:
    """The body of the request. Raises Rejected if it has more than SIZE_LIMIT bytes."""
    parts, size, is_more = [], 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Rejected(400, "the sender disconnected before the end of its message")
        part, is_more = message.get("body", b""), message.get("more_body", False)
        parts.append(part)
        size += len(part)
        if size > SIZE_LIMIT:
            raise Rejected(413, f"a message between peers has at most {SIZE_LIMIT} bytes")
    return b"".join(parts)
