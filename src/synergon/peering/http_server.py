"""Messages over HTTP: one route behind uvicorn on the node's own loop, and connections to others that are kept.

Promise: whatever comes in that is not a signed message of the cluster is refused, has no effect and causes no request.
What goes out goes to the address that was asked for and nowhere else: no redirects, no proxies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from synergon.errors import OptionError
from synergon.peering.http_client import HttpClient
from synergon.peering.signing import Envelope
from synergon.peering.transport import Deliver, Refused, SendError
from synergon.peering.wire import PATH, SIZE_LIMIT

if TYPE_CHECKING:
    from starlette.applications import Starlette

HEADERS: Final = {
    "peer_id": "X-Peer-ID",
    "time": "X-Peer-Time",
    "nonce": "X-Peer-Nonce",
    "signature": "X-Peer-Signature",
}
_NAMES: Final = {field: header.lower().encode() for field, header in HEADERS.items()}
SEND_SECONDS: Final = 2.0
SERVER_KEEPS_SECONDS: Final = 60
"""Longer than the client does: a connection must not close while a message is on its way into it."""


class HttpTransport:
    """Listens on `listen` (host and port; None: somebody else serves the app), and publishes `advertise` if given."""

    schemes = ("http://", "https://")

    def __init__(
        self, listen: tuple[str, int] | None, advertise: str | None, reachable_host: Callable[[], str]
    ) -> None:
        self._listen = listen
        self._advertise = advertise
        self._reachable_host = reachable_host
        self._serving: asyncio.Task[Any] | None = None
        self._address: str | None = None
        self._caller = HttpClient()
        self._starting = asyncio.Lock()

    async def serve(self, deliver: Deliver) -> str | None:
        """Bind and listen, unless the user's own server does."""
        if self._listen is None:
            return self._advertise
        async with self._starting:
            if self._serving is None:
                await asyncio.to_thread(_import_server)  # takes a while
                bound = _bind(*self._listen)
                self._address = self._advertise or self._published(bound)
                self._serving = asyncio.ensure_future(_started(own_app(deliver), bound))
            # Whoever gives up waiting leaves a server behind that `close` finds, not a socket that nobody knows.
            await asyncio.shield(self._serving)
            return self._address

    def _published(self, bound: socket.socket) -> str:
        host, port = bound.getsockname()[:2]
        if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not bound
            host = self._reachable_host()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def prepare(self) -> None:
        """Load the parser of answers."""
        await asyncio.to_thread(_import_parser)

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """POST it, once."""
        headers = {header: getattr(envelope, field) for field, header in HEADERS.items()}
        try:
            status, answer = await self._caller.post(address, headers, envelope.body, SEND_SECONDS)
        except ssl.SSLCertVerificationError as error:
            raise SendError(
                f"its certificate is not trusted: {error.verify_message} (an authority of your own is trusted if "
                "SSL_CERT_FILE names its file)"
            ) from error
        except (OSError, TimeoutError) as error:
            raise SendError(str(error) or type(error).__name__) from error
        if status != 200:
            raise SendError(f"answered {status} {answer[:200].decode(errors='replace')}")
        if not answer:
            raise SendError("answered nothing, as no peer does")
        return answer

    async def close(self) -> None:
        """Stop listening, and drop the connections."""
        serving, self._serving = self._serving, None
        if serving is not None:
            await (await serving).shutdown()
        await self._caller.close()


def _import_parser() -> None:
    import httptools  # noqa: F401  for those who come later


def _import_server() -> None:
    import uvicorn  # noqa: F401  for those who come later


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sends without delay only where it sees it.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OptionError(
            f"listen={host}:{port} cannot be bound: {error.strerror or error}; choose another address, "
            'port 0 for any free one, or listen="off"'
        ) from error
    bound.setblocking(False)
    return bound


async def _started(app: Any, bound: socket.socket) -> Any:
    """A uvicorn server that takes requests. Its own main loop is left out: it would take the process's signals."""
    import uvicorn

    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,  # nobody asks where a message came from: its signature counts
        ws="none",
        loop="none",
        timeout_keep_alive=SERVER_KEEPS_SECONDS,
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[bound])
    return server


def reachable_host(towards: str | None) -> str:
    """The address of this host that packets to `towards` leave from: whoever is there can reach us by it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards or "127.0.0.1", 9))  # sends nothing
            host: str = probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
    return host


class Ear:
    """An ASGI app that takes messages, whatever path they were sent to: whoever serves it has looked at that."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        try:
            answer = self._deliver(await _envelope(scope, receive))
            await asyncio.sleep(0)  # whoever was woken by it has a turn first: the sender waits for nothing but work
        except Refused as refusal:
            await _respond(send, refusal.status, b"text/plain; charset=utf-8", str(refusal).encode())
        else:
            await _respond(send, 200, b"application/json", answer)


def own_app(deliver: Deliver) -> Any:
    """The ASGI app that takes messages under `/peer/v1`, and is alone on its port: nothing is to be chosen."""
    ear = Ear(deliver)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != PATH:
            await _respond(send, 404, b"text/plain; charset=utf-8", b"Not Found")
        elif scope["method"] != "POST":
            await _respond(send, 405, b"text/plain; charset=utf-8", b"Method Not Allowed", (b"allow", b"POST"))
        else:
            await ear(scope, receive, send)

    return app


def peer_app(deliver: Deliver) -> Starlette:
    """The same, to be mounted anywhere in another one."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    app = Starlette(routes=[Route(PATH, Ear(deliver), methods=["POST"])])
    app.router.redirect_slashes = False  # what is signed is for this path, and peers follow nobody elsewhere
    return app


async def _respond(send: Any, status: int, media_type: bytes, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    described = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": described})
    await send({"type": "http.response.body", "body": body})


async def _envelope(scope: Any, receive: Any) -> Envelope:
    found = dict(reversed(scope["headers"]))  # the first of each name
    fields = {field: found.get(name, b"").decode("latin-1") for field, name in _NAMES.items()}
    for field, value in fields.items():
        if not value:
            raise Refused(401, f"the header {HEADERS[field]} is missing; messages of peers are signed")
    return Envelope(body=await _body(receive), **fields)


async def _body(receive: Any) -> bytes:
    """The body, read no further than it may go."""
    parts, size, is_more = [], 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the sender has gone before the end of its message")
        part, is_more = message.get("body", b""), message.get("more_body", False)
        parts.append(part)
        size += len(part)
        if size > SIZE_LIMIT:
            raise Refused(413, f"a message of peers has at most {SIZE_LIMIT} bytes")
    return b"".join(parts)
