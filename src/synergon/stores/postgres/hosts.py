"""The hosts that a URL names, and connections to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlunsplit

import asyncpg

_NEXT_MAY_DO: Final = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)
"""Errors of one host that say nothing about the others. A TimeoutError is an OSError."""


class Hosts:
    """Connects to the first host that answers and that `target_session_attrs` accepts.

    Each host has its share of the time: the driver gives all of it to the first, and a host that is silent, as after a
    power cut, would keep us from the one that has taken its place. The host that was used last is asked first.
    """

    def __init__(self, dsns: Sequence[str]) -> None:
        self.dsns = tuple(dsns)
        """A URL for each host, in the order in which they are asked."""

    async def connect(self, *, timeout: float, **settings: Any) -> asyncpg.Connection[Any]:
        """A new connection, within that many seconds."""
        *others, last = self.dsns
        share = timeout / (len(others) + 1)
        for dsn in others:
            with suppress(*_NEXT_MAY_DO):
                return await self._connect_to(dsn, timeout=share, **settings)
        return await self._connect_to(last, timeout=share, **settings)

    async def _connect_to(self, dsn: str, **settings: Any) -> asyncpg.Connection[Any]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn, **settings)
        # Threads share this object, so the order is replaced and not changed. The order of the others stays.
        self.dsns = tuple(sorted(self.dsns, key=lambda other: other != dsn))
        return connection


def dsns_of(parts: SplitResult, parameters: Sequence[tuple[str, str]]) -> list[str]:
    """A URL for each host that a URL with these parameters names, in its host part or as `host=`."""
    named = dict(parameters)
    user, at, hosts = parts.netloc.rpartition("@")
    names = (hosts or named.get("host", "")).split(",")
    ports = named.get("port", "").split(",")
    if len(names) == 1 or named.get("target_session_attrs") == "prefer-standby":  # which compares the hosts
        return [urlunsplit(parts._replace(query=urlencode(parameters)))]
    if len(ports) != len(names):
        ports = ports[:1] * len(names)
    found: list[str] = []
    for name, port in zip(names, ports, strict=True):
        own = {**named, **({"port": port} if port else {}), **({} if hosts else {"host": name})}
        netloc = f"{user}{at}{name}" if hosts else parts.netloc
        found.append(urlunsplit(parts._replace(netloc=netloc, query=urlencode(own))))
    return found
