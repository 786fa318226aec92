"""HealthService: the routes `/health`, `/ready` and `/metrics` of a worker."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from synergon.node.health.exposition import Exposition, is_installed
from synergon.node.health.readiness import Readiness
from synergon.peering.http_service import JSON, TEXT, HttpAnswer
from synergon.peering.transport import Rejected

METRICS: Final = b"text/plain; version=0.0.4; charset=utf-8"
"""The media type of the text format of Prometheus."""
NOT_INSTALLED: Final = "metrics need the extra `metrics`: pip install 'synergon[metrics]', and restart the worker"
ANSWER_LIMIT: Final = 16 * 1024 * 1024
"""How many bytes of answers may wait for a client: metrics of a thousand kinds have a few million."""


Route = Callable[[], HttpAnswer | Coroutine[Any, Any, HttpAnswer]]


class ProbeService:
    """Answers GET requests for a few paths."""

    method: Final = "GET"
    headers: Final[Mapping[bytes, str]] = MappingProxyType({})
    body_limit: Final = 0
    answer_limit: Final = ANSWER_LIMIT
    is_verifying: Final = False

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes

    def check(self, method: str, path: str, fields: Mapping[str, str]) -> None:  # noqa: ARG002  no header is needed
        """Raise Rejected for an unknown path or method."""
        if _route(path) not in self._routes:
            raise Rejected(404, f"the paths here are {', '.join(self._routes)}")
        if method != self.method:
            raise Rejected(405, f"the only method here is {self.method}")

    def answer(
        self,
        path: str,
        fields: Mapping[str, str],  # noqa: ARG002  no header is needed
        body: bytes,  # noqa: ARG002  GET has none
    ) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        """The answer to a request for this path."""
        return self._routes[_route(path)]()


class HealthService(ProbeService):
    """Answers probes and scrapes of one worker."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__({"/health": alive, "/ready": self._ready, "/metrics": self._metrics})
        self._readiness = readiness
        self._exposition = Exposition(readiness) if is_installed() else None

    def _ready(self) -> HttpAnswer:
        health = self._readiness.health()
        return HttpAnswer(msgspec.json.encode(health) + b"\n", JSON, 200 if health.ready else 503)

    async def _metrics(self) -> HttpAnswer:
        if self._exposition is None:
            raise Rejected(404, NOT_INSTALLED)
        return HttpAnswer(await self._exposition.text(), METRICS)


def _route(path: str) -> str:
    return path.partition("?")[0]


def alive() -> HttpAnswer:
    """The answer to `/health`, which shows that the process lives."""
    return HttpAnswer(b"ok\n", TEXT)
