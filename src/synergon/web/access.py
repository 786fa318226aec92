"""Access to the web API: who calls, what the caller may do, and whether a request comes from another site.

Every request passes these checks before its handler runs, in this order: the Host name, for changes the origin, the
caller, the role. A caller is found by a function of the request (`auth`). `first_of` joins several such functions: the
dashboard adds one that reads its session cookies.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from synergon.errors import OptionError
from synergon.model.record import storable
from synergon.web.problems import Problem

CHANGES: Final = frozenset({"POST", "DELETE"})
"""The methods of requests that change something."""

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""The Host names of a server that only this machine can reach."""


class Role(StrEnum):
    """What a caller may do. Each role may do what the ones before it may."""

    NONE = "none"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Whether a caller with this role may do what needs the role `needed`."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class User:
    """A caller: the name for the audit, and the role."""

    name: str
    role: Role

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise OptionError(f"a user's name is printable text of 1 to 200 characters, got {self.name!r}")
        if self.role not in _RANKS:
            raise OptionError(f"a user's role is one of {', '.join(Role)}, got {self.role!r}")
        object.__setattr__(self, "role", Role(self.role))


Auth = Callable[[Any], User | Awaitable[User | None] | None]
"""Finds the caller of a request, plain or `async`. Returns None if the caller is not known."""


def first_of(*functions: Auth) -> Auth:
    """Make an `auth` function that asks these functions in order, and returns the first caller that one of them
    finds."""

    async def auth(request: HTTPConnection) -> User | None:
        for function in functions:
            user = await called(function, request)
            if user is not None:
                return user
        return None

    return auth


async def called(function: Auth, request: HTTPConnection) -> User | None:
    """The caller that the function finds. Raises TypeError if the function returns anything else."""
    found = function(request)
    user = await found if inspect.isawaitable(found) else found
    if user is not None and not isinstance(user, User):
        raise TypeError(f"auth must return a User or None, got {user!r}")
    return user


def everybody(user: User) -> Auth:
    """Make an `auth` function for which every caller is `user`. For servers that only this machine can reach."""
    return lambda _request: user


class Access:
    """The checks of every request."""

    def __init__(self, auth: Auth, *, hosts: Iterable[str] | None = None) -> None:
        """`hosts` are the allowed Host names, without ports. None: the application around this one checks them."""
        if not callable(auth):
            raise OptionError(f"auth must be a function from a request to a User or None, got {auth!r}")
        if isinstance(hosts, str):
            raise OptionError(f"hosts must be a list of names, got {hosts!r}")
        self._auth = auth
        self._hosts = None if hosts is None else frozenset(host.lower().strip("[]") for host in hosts)

    def check_source(self, request: HTTPConnection) -> None:
        """Raise Problem if the Host name is not allowed, or a change comes from another site. A browser that shows a
        page of another site says so in `Sec-Fetch-Site`, or else in `Origin`."""
        host = _host_of(request)
        if self._hosts is not None and _without_port(host) not in self._hosts:
            raise Problem(400, f"this server does not answer for the host {host!r}; add the name to its hosts")
        if request.scope.get("method") not in CHANGES:
            return
        site = request.headers.get("sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            raise Problem(403, "a change cannot be requested by a page of another site")
        origin = request.headers.get("origin")
        if origin is not None and _netloc(origin) != host:
            raise Problem(403, "a change cannot be requested by a page of another origin")

    async def find_user(self, request: HTTPConnection) -> User:
        """The caller of a request. Raises Problem if the caller is not known."""
        user = await called(self._auth, request)
        if user is None:
            raise Problem(
                401,
                "who calls is not known; send `Authorization: Bearer TOKEN` with a valid token",
                headers={"WWW-Authenticate": 'Bearer realm="synergon"'},
            )
        return user

    async def permit(self, request: HTTPConnection, needed: Role) -> User:
        """Check a request, and return its caller. Raises Problem unless the caller has the role `needed`."""
        self.check_source(request)
        user = await self.find_user(request)
        if not user.role.allows(needed):
            raise Problem(403, f"this needs the role {needed}; {user.name} has the role {user.role}")
        return user


def operator_of(request: HTTPConnection, user: User) -> str:
    """The caller and the address of the connection, as the audit records them."""
    return storable(f"{user.name}@{address_of(request)}")


def address_of(request: HTTPConnection) -> str:
    """The address that the connection comes from."""
    return request.client.host if request.client is not None else "unknown"


def _host_of(request: HTTPConnection) -> str:
    hosts = request.headers.getlist("host")
    if len(hosts) != 1:
        raise Problem(400, f"a request has one Host header, got {len(hosts)}")
    return hosts[0].lower()


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if colon and (port.isdecimal() or not port) and not (":" in name and not name.endswith("]")):
        host = name
    return host.strip("[]")
