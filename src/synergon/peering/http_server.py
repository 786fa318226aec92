"""HTTP transport: one route served by uvicorn on the engine's event loop, and a client with persistent connections.

A request that is not a signed message of the cluster is rejected, has no effect and causes no further request. Messages
are sent to the given address only: no redirects, no proxies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from synergon.errors import OptionError
from synergon.peering.http_client import HttpClient
from synergon.peering.signatures import Envelope
from synergon.peering.transport import Deliver, Rejected, SendError
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
SERVER_KEEP_ALIVE_SECONDS: Final = 60
"""Longer than the client's: the server must not close a connection while the client sends a message on it."""


class HttpTransport:
    """Listens on `listen` (host and port; None: the application serves `peer_app` itself) and sends over HTTP.

    The published address is `advertise` if that is given; else, where `listen` is every interface, the address of this
    host on the route to `database_host`.
    """

    schemes = ("http://", "https://")

    def __init__(self, listen: tuple[str, int] | None, advertise: str | None, database_host: str | None = None) -> None:
        self._listen = listen
        self._advertise = advertise
        self._database_host = database_host
        self._server: asyncio.Task[Any] | None = None
        self._address: str | None = None
        self._client = HttpClient()
        self._start_lock = asyncio.Lock()

    async def serve(self, deliver: Deliver) -> str | None:
        """Bind and listen, unless the application's own server does."""
        if self._listen is None:
            return self._advertise
        async with self._start_lock:
            if self._server is None:
                await asyncio.to_thread(_import_server)  # slow; it would block the event loop
                bound = _bind(*self._listen)
                self._address = self._advertise or self._published(bound)
                self._server = asyncio.ensure_future(_start(own_app(deliver), bound))
            # If the caller is cancelled, the start goes on and `close` finds the server; no bound socket leaks.
            await asyncio.shield(self._server)
            return self._address

    def _published(self, bound: socket.socket) -> str:
        host, port = bound.getsockname()[:2]
        if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not bound
            host = reachable_host(self._database_host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def prepare(self) -> None:
        """Import the parser of answers."""
        await asyncio.to_thread(_import_parser)

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """POST the envelope once."""
        headers = {header: getattr(envelope, field) for field, header in HEADERS.items()}
        try:
            status, answer = await self._client.post(address, headers, envelope.body, SEND_SECONDS)
        except ssl.SSLCertVerificationError as error:
            raise SendError(
                f"its certificate is not trusted: {error.verify_message} (to trust an authority of your own, set "
                "SSL_CERT_FILE to its file)"
            ) from error
        except (OSError, TimeoutError) as error:
            raise SendError(str(error) or type(error).__name__) from error
        if status != 200:
            raise SendError(f"answered {status} {answer[:200].decode(errors='replace')}")
        if not answer:
            raise SendError("answered with an empty body; is another server at this address?")
        return answer

    async def close(self) -> None:
        """Stop listening and close the connections."""
        server, self._server = self._server, None
        if server is not None:
            await (await server).shutdown()
        await self._client.close()


def _import_parser() -> None:
    import httptools  # noqa: F401  imported here for its side effect: later imports are fast


def _import_server() -> None:
    import uvicorn  # noqa: F401  as above


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is named.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OptionError(
            f"listen={host}:{port} cannot be bound: {error.strerror or error}; choose another address, "
            'port 0 for any free port, or listen="off"'
        ) from error
    bound.setblocking(False)
    return bound


async def _start(app: Any, bound: socket.socket) -> Any:
    """Start a uvicorn server. `Server.serve` is not used: it would install signal handlers in the process."""
    import uvicorn

    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,  # the sender's address is not used: the signature is what counts
        ws="none",
        loop="none",
        timeout_keep_alive=SERVER_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[bound])
    return server


def reachable_host(towards: str | None) -> str:
    """The address of this host on the route to `towards`, by which hosts over there can reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards or "127.0.0.1", 9))  # sends nothing
            host: str = probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
    return host


class MessageApp:
    """ASGI app that receives messages. It does not check the path: the app that routes to it has done so."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        try:
            answer = self._deliver(await _envelope(scope, receive))
            await asyncio.sleep(0)  # lets the tasks woken by the message run first; the answer is less urgent
        except Rejected as rejection:
            await _respond(send, rejection.status, b"text/plain; charset=utf-8", str(rejection).encode())
        else:
            await _respond(send, 200, b"application/json", answer)


def own_app(deliver: Deliver) -> Any:
    """ASGI app with the single route `/peer/v1`, for a port of its own."""
    messages = MessageApp(deliver)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != PATH:
            await _respond(send, 404, b"text/plain; charset=utf-8", b"Not Found")
        elif scope["method"] != "POST":
            await _respond(send, 405, b"text/plain; charset=utf-8", b"Method Not Allowed", (b"allow", b"POST"))
        else:
            await messages(scope, receive, send)

    return app


def peer_app(deliver: Deliver) -> Starlette:
    """Starlette app with the single route `/peer/v1`, to be mounted in the application's own app."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    app = Starlette(routes=[Route(PATH, MessageApp(deliver), methods=["POST"])])
    app.router.redirect_slashes = False  # the signature covers the path, and peers do not follow redirects
    return app


async def _respond(send: Any, status: int, media_type: bytes, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    all_headers = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def _envelope(scope: Any, receive: Any) -> Envelope:
    found = dict(reversed(scope["headers"]))  # the first of each name
    fields = {field: found.get(name, b"").decode("latin-1") for field, name in _NAMES.items()}
    for field, value in fields.items():
        if not value:
            raise Rejected(401, f"the header {HEADERS[field]} is missing; messages between peers are signed")
    return Envelope(body=await _body(receive), **fields)


async def _body(receive: Any) -> bytes:
    """The body of the request; reading stops at SIZE_LIMIT."""
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
