"""Sessions of people who have logged in to the dashboard.

A session is a random cookie; the process keeps only its digest. It ends after a fixed time, at the logout, and as soon
as the entry of its user in the credentials changes: a removed user is out with the next request.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.responses import Response

from synergon.web.access import User
from synergon.web.credentials import Credentials

COOKIE: Final = "synergon_session"
COOKIE_BYTES: Final = 32
SESSION_SECONDS: Final = 12 * 3600
MOST_SESSIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Session:
    user: User
    entry: tuple[Any, ...]
    """The role and password of the user when the session began. If they change, the session ends."""
    ends_at: float


class Sessions:
    """The sessions of one dashboard, in the memory of its process."""

    def __init__(self, credentials: Credentials, clock: Callable[[], float] = time.monotonic) -> None:
        self._credentials = credentials
        self._clock = clock
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def find_user(self, request: HTTPConnection) -> User | None:
        """The user of the session that the request names. None if it has none, or if it has ended."""
        given = request.cookies.get(COOKIE)
        if given is None:
            return None
        key = _digest(given)
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.ends_at <= self._clock() or self._credentials.entry(session.user.name) != session.entry:
            del self._sessions[key]
            return None
        return session.user

    def open(self, user: User, request: HTTPConnection, response: Response) -> None:
        """Start a session, and give its cookie to the response. Ends the session that the request had."""
        self._forget(request)
        entry = self._credentials.entry(user.name)
        if entry is None:
            return
        made = secrets.token_urlsafe(COOKIE_BYTES)
        self._sessions[_digest(made)] = _Session(user, entry, self._clock() + SESSION_SECONDS)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        response.set_cookie(
            COOKIE,
            made,
            max_age=SESSION_SECONDS,
            path=_path_of(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def close(self, request: HTTPConnection, response: Response) -> None:
        """End the session of the request."""
        self._forget(request)
        response.delete_cookie(COOKIE, path=_path_of(request), httponly=True, samesite="strict")

    def end_all(self) -> None:
        """End all sessions."""
        self._sessions.clear()

    def _forget(self, request: HTTPConnection) -> None:
        self._sessions.pop(_digest(request.cookies.get(COOKIE, "")), None)


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode(errors="surrogatepass")).digest()


def _path_of(request: HTTPConnection) -> str:
    return request.scope.get("root_path") or "/"
