"""Health of several workers: the supervisor answers probes and scrapes for all of them at the given address. Each
worker answers for itself at one of the next ports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final

import msgspec

from synergon.cli.health import ANY_HOST
from synergon.model.record import Record
from synergon.node.health.exposition import CACHE_SECONDS, is_installed, text_of
from synergon.node.health.readiness import WorkerHealth
from synergon.node.health.service import METRICS, NOT_INSTALLED, ProbeService, alive
from synergon.peering.http_server import HttpServer
from synergon.peering.http_service import JSON, HttpAnswer
from synergon.peering.listen_address import bind
from synergon.peering.transport import Rejected

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

ASK_SECONDS: Final = 4.0
"""How long a worker may take to answer. For a scrape, the worker itself waits up to two seconds for the store."""


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class WorkersHealth(Record, frozen=True, kw_only=True):
    """What `/ready` answers for several workers."""

    ready: bool
    reasons: tuple[str, ...]
    """Why workers are not ready, each with the number of its worker."""


class SupervisorHealth(ProbeService):
    """Asks the workers, and answers for all of them. Ready means that all are."""

    def __init__(self, workers: Mapping[str, str]) -> None:
        super().__init__({"/health": alive, "/ready": self._ready, "/metrics": self._metrics})
        self._workers = workers
        """The addresses of the workers by number, as text."""
        self._lock = asyncio.Lock()
        self._made_at = float("-inf")
        self._text = b""

    async def _ready(self) -> HttpAnswer:
        answers = await self._ask_all("/ready")
        reasons = tuple(
            f"worker {number}: {reason}" for number, answer in answers.items() for reason in _reasons(answer)
        )
        health = WorkersHealth(ready=not reasons, reasons=reasons)
        return HttpAnswer(msgspec.json.encode(health) + b"\n", JSON, 200 if health.ready else 503)

    async def _metrics(self) -> HttpAnswer:
        if not is_installed():
            raise Rejected(404, NOT_INSTALLED)
        async with self._lock:
            if time.monotonic() - self._made_at >= CACHE_SECONDS:
                answers = await self._ask_all("/metrics")
                texts = {number: answer[1] if answer[0] == 200 else None for number, answer in answers.items()}
                self._text = text_of(merged(texts))
                self._made_at = time.monotonic()
            return HttpAnswer(self._text, METRICS)

    async def _ask_all(self, path: str) -> dict[str, tuple[int, str]]:
        found = await asyncio.gather(*(asyncio.to_thread(_ask, one, path) for one in self._workers.values()))
        return dict(zip(self._workers, found, strict=True))


def _ask(address: str, path: str) -> tuple[int, str]:
    """The status and the body of the worker's answer; status 0 and the reason if there is none. Blocks."""
    host, port = split_address(address)
    connection = HTTPConnection(ANY_HOST.get(host, host), port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        return 0, f"does not answer at {address}: {str(error) or type(error).__name__}"
    finally:
        connection.close()


def _reasons(answer: tuple[int, str]) -> Sequence[str]:
    status, body = answer
    if not status:
        return [body]
    try:
        return msgspec.json.decode(body, type=WorkerHealth).reasons
    except msgspec.MsgspecError:
        return [f"answered {status}"]


def merged(texts: Mapping[str, str | None]) -> list[Metric]:
    """The metrics of all workers, each with the label `process`. The text of a worker that does not answer is None."""
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.parser import text_string_to_metric_families

    answers = GaugeMetricFamily(
        "synergon_worker_answers", "Whether the worker answered this scrape (1) or not (0).", labels=("process",)
    )
    found: dict[str, Metric] = {}
    for number, text in texts.items():
        answers.add_metric((number,), float(text is not None))
        for family in text_string_to_metric_families(text or ""):
            known = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                known.add_sample(sample.name, {**sample.labels, "process": number}, sample.value)
    return [answers, *found.values()]


def serve(address: str, workers: Mapping[str, str]) -> HttpServer:
    """Answer at this address. Raises OptionError if it cannot be bound."""
    server = HttpServer(bind(*split_address(address), "health_listen"), SupervisorHealth(workers))
    server.start()
    return server
