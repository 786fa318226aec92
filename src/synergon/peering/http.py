"""Messages over HTTP: one Starlette route behind uvicorn on the node's own loop, and an aiohttp client.

Promise: whatever comes in that is not a signed message of the cluster is refused, has no effect and causes no request.
What goes out goes to the address that was asked for and nowhere else: no redirects, no proxies.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from synergon.errors import OptionError
from synergon.peering.seal import Envelope
from synergon.peering.transport import Deliver, Refused, SendError
from synergon.peering.wire import PATH, SIZE_LIMIT

if TYPE_CHECKING:
    import aiohttp
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HEADERS: Final = {
    "peer_id": "X-Peer-ID",
    "time": "X-Peer-Time",
    "nonce": "X-Peer-Nonce",
    "signature": "X-Peer-Signature",
}
SEND_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 1.0
CLIENT_KEEPS_SECONDS: Final = 20.0
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
        self._session: aiohttp.ClientSession | None = None
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
                self._serving = asyncio.ensure_future(_started(peer_app(deliver), bound))
            # Whoever gives up waiting leaves a server behind that `close` finds, not a socket that nobody knows.
            await asyncio.shield(self._serving)
            return self._address

    def _published(self, bound: socket.socket) -> str:
        host, port = bound.getsockname()[:2]
        if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not bound
            host = self._reachable_host()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def prepare(self) -> None:
        """Load the client."""
        await self._client()

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """POST it, once."""
        session = await self._client()
        headers = {header: getattr(envelope, field) for field, header in HEADERS.items()}
        try:
            async with session.post(
                address.rstrip("/") + PATH, data=envelope.body, headers=headers, allow_redirects=False
            ) as response:
                answer = await response.content.read(SIZE_LIMIT)
        except (OSError, TimeoutError, _client_error()) as error:
            raise SendError(str(error) or type(error).__name__) from error
        if response.status != 200:
            raise SendError(f"answered {response.status} {answer[:200].decode(errors='replace')}")
        return answer

    async def _client(self) -> aiohttp.ClientSession:
        async with self._starting:
            if self._session is None:
                # It takes a while to import, and only those who have peers need it.
                await asyncio.to_thread(_client_error)
                import aiohttp

                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=CLIENT_KEEPS_SECONDS),
                    timeout=aiohttp.ClientTimeout(total=SEND_SECONDS, connect=CONNECT_SECONDS),
                    trust_env=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                )
            return self._session

    async def close(self) -> None:
        """Stop listening, and drop the connections."""
        serving, self._serving = self._serving, None
        session, self._session = self._session, None
        if serving is not None:
            await (await serving).shutdown()
        if session is not None:
            await session.close()


def _client_error() -> type[Exception]:
    import aiohttp

    return aiohttp.ClientError


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


async def _started(app: Starlette, bound: socket.socket) -> Any:
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


def peer_app(deliver: Deliver) -> Starlette:
    """The ASGI app that takes messages under `/peer/v1`; it may be mounted anywhere in another one."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    async def receive(request: Request) -> Response:
        try:
            answer = deliver(await _envelope(request))
            await asyncio.sleep(0)  # whoever was woken by it has a turn first: the sender waits for nothing but work
            return Response(answer, media_type="application/json")
        except Refused as refusal:
            return PlainTextResponse(str(refusal), status_code=refusal.status)

    app = Starlette(routes=[Route(PATH, receive, methods=["POST"])])
    app.router.redirect_slashes = False  # what is signed is for this path, and peers follow nobody elsewhere
    return app


async def _envelope(request: Request) -> Envelope:
    fields = {field: request.headers.get(header) for field, header in HEADERS.items()}
    for field, value in fields.items():
        if not value:
            raise Refused(401, f"the header {HEADERS[field]} is missing; messages of peers are signed")
    return Envelope(body=await _body(request), **fields)  # type: ignore[arg-type]  # all are there by now


async def _body(request: Request) -> bytes:
    """The body, read no further than it may go."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > SIZE_LIMIT:
            raise Refused(413, f"a message of peers has at most {SIZE_LIMIT} bytes")
    return b"".join(parts)
