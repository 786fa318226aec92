"""The hosts that a URL names, and connections to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit, urlunsplit

import asyncpg

_NEXT_MAY_DO: Final = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)
"""Errors of one host that say nothing about the others. A TimeoutError is an OSError."""


class Hosts:
    """Connects to the first host that answers and that `target_session_attrs` accepts.

    Each host gets a share of the timeout. The driver alone would spend the whole timeout on the first host, so that a
    host that does not answer, as after a power cut, would hide its replacement. The host that was used last is tried
    first.
    """

    def __init__(self, dsns: Sequence[str]) -> None:
        self.dsns: tuple[str, ...] = tuple(dsns)
        """A URL for each host, in the order in which they are tried."""
        self.application_name = "synergon"
        """The name under which the server shows the connections, unless the URL sets another."""

    async def connect(
        self, *, timeout: float, server_settings: Mapping[str, str] | None = None, **settings: Any
    ) -> asyncpg.Connection[Any]:
        """Open a connection to the first host that answers, within `timeout` seconds in all."""
        settings["server_settings"] = {**self._name_setting(), **(server_settings or {})}
        *others, last = self.dsns
        share = timeout / (len(others) + 1)
        for dsn in others:
            with suppress(*_NEXT_MAY_DO):
                return await self._connect_to(dsn, timeout=share, **settings)
        return await self._connect_to(last, timeout=share, **settings)

    def _name_setting(self) -> dict[str, str]:
        given = parse_qs(urlsplit(self.dsns[0]).query)
        is_named = any("application_name" in text.lower() for text in (*given, *given.get("options", ())))
        return {} if is_named else {"application_name": self.application_name}

    async def _connect_to(self, dsn: str, **settings: Any) -> asyncpg.Connection[Any]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn, **settings)
        # Threads share this object, so the order is replaced and not changed. The order of the others stays.
        self.dsns = tuple(sorted(self.dsns, key=lambda other: other != dsn))
        return connection


def dsns_of(parts: SplitResult, parameters: Sequence[tuple[str, str]]) -> list[str]:
    """Split a URL with several hosts, in its host part or as `host=`, into a URL for each host."""
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
