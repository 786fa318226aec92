"""The server of `synergon api` and `synergon dashboard`: a process of its own, that only this machine can reach unless
it has credentials."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette

from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.web.access import LOOPBACK_HOSTS, Auth, Role, User, everybody
from synergon.web.app import make_app
from synergon.web.credentials import ENVIRONMENT, Credentials
from synergon.web.dashboard.app import make_dashboard
from synergon.web.http_protocol import HttpProtocol
from synergon.web.inputs import HEADER_BYTES

LOOPBACK: Final = "127.0.0.1"
LOCAL_USER: Final = "local"
"""The name of callers without credentials in the audit."""

MOST_CONNECTIONS: Final = 200
BACKLOG: Final = 128
STOP_SECONDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where a server listens, for which Host names, and who may do what. `plan` makes it and checks it."""

    host: str
    port: int
    auth: Auth
    hosts: tuple[str, ...]
    proxies: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def plan(
    listen: str,
    *,
    credentials: Credentials | None,
    grant: Role = Role.READ,
    hosts: Sequence[str] = (),
    proxies: Sequence[str] = (),
) -> Plan:
    """Make the plan of a server. Raises OptionError if it is not safe or not possible. Without credentials every caller
    has the role `grant`, and only this machine may be able to call."""
    host, port = parse_listen(listen)
    if credentials is None and not is_loopback(host):
        raise OptionError(
            f"{listen} can be reached from other machines, and there are no credentials: give --credentials FILE, or "
            f"set {ENVIRONMENT} (`synergon credentials token` makes a token), or listen on {LOOPBACK}:{port}"
        )
    if credentials is not None and grant is not Role.READ:
        raise OptionError("--grant is for callers without credentials; the role of a user or token is with its entry")
    if not hosts and _is_any(host):
        raise OptionError(
            f"{listen} is every address of this machine; name the hosts that callers use: --host tasks.example.com"
        )
    names = (*hosts, *LOOPBACK_HOSTS) if is_loopback(host) or _is_any(host) else (*hosts, host)
    auth: Auth = everybody(User(LOCAL_USER, grant)) if credentials is None else credentials
    return Plan(host=host, port=port, auth=auth, hosts=names, proxies=tuple(proxies))


def parse_listen(text: str) -> tuple[str, int]:
    """The host and port to listen on. `:8080` means this machine only."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or set("/@ ").intersection(host):
        raise OptionError(f'an address to listen on is like ":8080" or "10.0.0.5:8080", got {text!r}')
    return host.strip("[]") or LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def app_of(engine: Engine, planned: Plan) -> Starlette:
    """The app of `synergon api`."""
    return make_app(engine, auth=planned.auth, hosts=planned.hosts)


def dashboard_of(engine: Engine, planned: Plan) -> Starlette:
    """The app of `synergon dashboard`."""
    return make_dashboard(engine, auth=planned.auth, hosts=planned.hosts)


def config_of(app: Any, planned: Plan) -> uvicorn.Config:
    """The configuration of the web server, with its limits. Headers of proxies are trusted only from the proxies in the
    plan."""
    return uvicorn.Config(
        app,
        host=planned.host,
        port=planned.port,
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=bool(planned.proxies),
        forwarded_allow_ips=list(planned.proxies),
        limit_concurrency=MOST_CONNECTIONS,
        backlog=BACKLOG,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )


async def serve(app: Any, planned: Plan, on_start: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM. `on_start` is called with the address of the server when it answers. Raises
    OptionError if the address cannot be bound."""
    server = Server(config_of(app, planned))
    with bind(planned) as listening:
        port: int = listening.getsockname()[1]
        server.on_start = lambda: on_start(replace(planned, port=port).url)
        await server.serve(sockets=[listening])


def bind(planned: Plan) -> socket.socket:
    """A socket that is bound to the address of the server."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            planned.host, planned.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_bind(planned, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_bind(planned, error) from error
    return bound


def _cannot_bind(planned: Plan, error: OSError) -> OptionError:
    return OptionError(
        f"cannot listen on {planned.host}:{planned.port}: {error.strerror or error}; choose another address, or port 0 "
        "for any free one"
    )


class Server(uvicorn.Server):
    """Stops in order at SIGINT and SIGTERM, and lets the process end with code 0. uvicorn itself would raise the signal
    once more."""

    on_start: Callable[[], object] = staticmethod(lambda: None)
    """Called when the server answers."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and call `on_start`."""
        await super().startup(sockets)
        if self.started:
            self.on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at signals, while the server runs."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def hosts_of(text: Iterable[str]) -> list[str]:
    """The names in options: each option may have several, separated by commas."""
    return [name for part in text for name in part.replace(",", " ").split()]
