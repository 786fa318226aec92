"""HTTP transport: a server with one route on the engine's event loop, and a client with persistent connections.

A request that is not a signed message of the cluster is rejected; it has no effect and causes no further request.
Messages are sent only to the given address: no redirects, no proxies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from synergon.peering.http_client import HttpClient
from synergon.peering.http_headers import headers_of
from synergon.peering.http_server import HttpServer
from synergon.peering.listen_address import bind, facing_address
from synergon.peering.peer_service import PeerService
from synergon.peering.signatures import Envelope
from synergon.peering.transport import Deliver, NotTrusted, SendError

SEND_SECONDS: Final = 2.0


class HttpTransport:
    """Sends over HTTP, and listens on `listen` (host and port). If `listen` is None, the application serves `PeerApp`
    itself.

    If `listen` has no host, the server listens on the interface that faces the `database_hosts`. The published address
    is `advertise`; without it, the address that the server listens on, or, if it listens on every interface, the
    address that faces the database.
    """

    schemes: Final = ("http://", "https://")

    def __init__(
        self, listen: tuple[str | None, int] | None, advertise: str | None, database_hosts: tuple[str, ...] = ()
    ) -> None:
        self._listen = listen
        self._advertise = advertise
        self._database_hosts = database_hosts
        self._server: HttpServer | None = None
        self._address: str | None = None
        self._client = HttpClient()
        self._start_lock = asyncio.Lock()

    async def serve(self, deliver: Deliver) -> str | None:
        """Bind and listen, unless the application serves `PeerApp` itself. Returns the address to publish."""
        if self._listen is None:
            return self._advertise
        async with self._start_lock:
            if self._server is None:
                await self.prepare()
                facing = await asyncio.to_thread(facing_address, self._database_hosts)  # may ask a name server
                bound = bind(self._listen[0] or facing, self._listen[1], "listen")
                self._address = self._advertise or _published(bound, facing)
                self._server = HttpServer(bound, PeerService(deliver))
                self._server.start()
            return self._address

    async def prepare(self) -> None:
        """Import the parser of requests and answers on a thread: the import is slow, and would block the event loop."""
        await asyncio.to_thread(_import_parser)

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """POST the envelope once, and return the answer. Raises SendError if there is no valid answer."""
        try:
            status, answer = await self._client.post(address, headers_of(envelope), envelope.body, SEND_SECONDS)
        except ssl.SSLCertVerificationError as error:
            raise SendError(
                f"its certificate is not trusted: {error.verify_message} (to trust an authority of your own, set "
                "SSL_CERT_FILE to its file)"
            ) from error
        except (OSError, TimeoutError) as error:
            raise SendError(str(error) or type(error).__name__) from error
        if status != 200:
            problem = NotTrusted if status == 401 else SendError
            raise problem(f"answered {status} {answer[:200].decode(errors='replace')}")
        if not answer:
            raise SendError("answered with an empty body; is another server at this address?")
        return answer

    async def close(self) -> None:
        """Stop listening and close the connections."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        await self._client.close()


def _import_parser() -> None:
    import httptools  # noqa: F401  imported here for its side effect: later imports are fast


def _published(bound: socket.socket, facing: str) -> str:
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not bound
        host = facing
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
