"""Finds servers that several providers name. Each provider counts only its own tasks, so such a server would get the
capacity of each of them, unless a limit covers it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from synergon.options.addresses import covers


class NamedServer(NamedTuple):
    """A server, and a provider that names it."""

    provider: str
    address: str
    capacity: int | None


class CountedTwice(NamedTuple):
    """A server that two providers name with a capacity, and that no limit covers."""

    address: str
    first: str
    second: str

    @property
    def problem(self) -> str:
        """What is wrong, as a clause."""
        return (
            f"providers {self.first!r} and {self.second!r} both name the server {self.address!r}, "
            "and each would give it its full capacity"
        )

    @property
    def advice(self) -> str:
        """What to do about it."""
        return (
            f"write engine.limit({self.address!r}, ...) above them, which counts the tasks of both, "
            "or take it from one of them"
        )


def counted_twice(servers: Iterable[NamedServer], limits: Iterable[str]) -> Iterator[CountedTwice]:
    """The servers that are counted twice, in the order in which a second provider names them. Closed servers and
    servers of unlimited capacity are left out."""
    prefixes = list(limits)
    providers: dict[str, str] = {}
    for server in servers:
        if not server.capacity:
            continue
        first = providers.setdefault(server.address, server.provider)
        if first != server.provider and not any(covers(prefix, server.address) for prefix in prefixes):
            yield CountedTwice(server.address, first, server.provider)
