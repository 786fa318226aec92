"""Exposition: the metrics of a worker as the text that Prometheus reads. Needs the extra `metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Final, get_args

from synergon.errors import SynergonError
from synergon.model.cluster_status import QueueStatus, StoreVitals
from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord
from synergon.model.requirements import PROCESS, THREAD, UNIT, WHOLE_NODE
from synergon.model.task_statistics import BOUNDS, SUCCEEDED, Buckets
from synergon.node.duties.sweep import SweepMode
from synergon.node.health.readiness import Readiness
from synergon.node.metrics import MAX_NAMES, OTHER, Metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from synergon.node.node import Node

CACHE_SECONDS: Final = 1.0
"""For how many seconds one text is used for all scrapes."""
STORE_SECONDS: Final = 2.0
"""How many seconds a scrape waits for the store. Without an answer, the scrape has everything but the numbers of the
store."""

RAM: Final = "ram"
"""The resource whose amounts are bytes. The amounts of other resources are millionths."""
UNIT_NAMES: Final = {PROCESS: "child_processes", THREAD: "threads"}
NAMES: Final = ("kind", "queue")


def is_installed() -> bool:
    """Whether the extra `metrics` is installed."""
    return find_spec("prometheus_client") is not None


class StoreNumbers:
    """The numbers that a scrape reads from the store."""

    def __init__(
        self,
        tasks: Mapping[tuple[str, str, State], int],
        queues: Iterable[QueueStatus],
        limits: Iterable[LimitRecord],
        vitals: StoreVitals,
    ) -> None:
        self.tasks = tasks
        self.queues: Final = tuple(queues)
        self.limits: Final = tuple(limits)
        self.vitals: Final = vitals


class Exposition:
    """Makes the text of a scrape, at most once per second. Runs on the event loop of the health thread."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._lock = asyncio.Lock()
        self._made_at = float("-inf")
        self._text = b""

    async def text(self) -> bytes:
        """The text of the metrics, not older than CACHE_SECONDS."""
        async with self._lock:
            if time.monotonic() - self._made_at >= CACHE_SECONDS:
                self._text = await self._make()
                self._made_at = time.monotonic()
            return self._text

    async def _make(self) -> bytes:
        node = self._readiness.node
        numbers = None if node is None else await _read(node)
        families = [_gauge("ready", "Whether the worker is ready (1) or not (0).", self._readiness.health().ready)]
        families += _counted(Metrics() if node is None else node.metrics)
        if node is not None:
            families += _now(node)
        return text_of([*families, *_stored(numbers)])


def text_of(families: Sequence[Metric]) -> bytes:
    """The metrics in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return generate_latest(registry)


class _Collector:
    """Passes metrics to the Prometheus client library, which reads them from collectors. The metrics are computed
    beforehand."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


# ---------------------------------------------------------------- what was counted


def _counted(metrics: Metrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    accepted = CounterMetricFamily("synergon_tasks_accepted", "Tasks that this process has stored.", labels=NAMES)
    started = CounterMetricFamily("synergon_attempts_started", "Attempts that this worker started.", labels=NAMES)
    finished = CounterMetricFamily(
        "synergon_attempts_finished", "Attempts whose outcome the store has.", labels=(*NAMES, "reason")
    )
    wait = HistogramMetricFamily(
        "synergon_wait_seconds", "How long tasks were due before this worker started them.", labels=NAMES
    )
    run = HistogramMetricFamily("synergon_run_seconds", "How long attempts ran.", labels=NAMES)
    for name, tally in list(metrics.tallies.items()):
        if tally.accepted:
            accepted.add_metric(name, tally.accepted)
        if not tally.started:
            continue
        started.add_metric(name, tally.started)
        for reason, number in ((SUCCEEDED, tally.succeeded), *list(tally.ended.items())):
            if number:
                finished.add_metric((*name, reason), number)
        wait.add_metric(name, _buckets(BOUNDS, tally.wait), tally.waited / 1_000_000)
        run.add_metric(name, _buckets(BOUNDS, tally.run.counts), tally.run.sum)
    yield from (accepted, started, finished, wait, run)
    yield _histogram("claim_seconds", "How long the store took for a claim.", metrics.claim_seconds)
    yield _histogram("claim_tasks", "How many tasks a claim took.", metrics.claim_sizes)
    yield _histogram("finish_seconds", "How long the store took to write outcomes.", metrics.finish_seconds)
    yield _histogram("finish_outcomes", "How many outcomes were written at once.", metrics.finish_sizes)


def _gauge(name: str, text: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"synergon_{name}", text, float(value))


def _histogram(name: str, text: str, buckets: Buckets) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(f"synergon_{name}", text, _buckets(buckets.bounds, buckets.counts), buckets.sum)


def _buckets(bounds: Sequence[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """The cumulative number of values up to each bound, in the form that Prometheus expects."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return [(name, float(total)) for name, total in zip(names, accumulate(list(counts)), strict=True)]


# ---------------------------------------------------------------- what the node is like now


def _now(node: Node) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    sent, failed = node.hint_requests
    stale = "Outcomes that the store refused, because the claim was stale."
    yield CounterMetricFamily("synergon_stale_outcomes", stale, node.completer.stale)
    yield CounterMetricFamily("synergon_hint_requests", "Requests with hints that a peer has answered.", sent)
    yield CounterMetricFamily("synergon_hint_failures", "Requests with hints without an answer.", failed)
    yield _histogram("hint_seconds", "How long peers took to answer requests with hints.", node.hint_seconds)
    yield from _capacity(node)
    membership = node.membership
    if membership.lease is not None:
        yield _gauge("lease_age_seconds", "Seconds since the last renewal of the lease.", membership.lease.age_seconds)
    if membership.watchdog is not None:
        lag = max(membership.watchdog.lag_seconds, membership.watchdog.blocked_seconds)
        yield _gauge("loop_lag_seconds", "How long the event loop takes to answer.", lag)
    yield _gauge("sweep_interval_seconds", "The current interval between two sweeps.", node.sweep_seconds)
    mode = node.sweep_mode
    yield _labelled(
        "sweep_mode",
        "Whether the node sweeps often, seldom, or at a fixed interval.",
        ("mode",),
        [((one,), one == mode) for one in get_args(SweepMode)],
    )


def _capacity(node: Node) -> Iterator[Metric]:
    ledger = node.ledger
    yield _labelled(
        "running",
        "Attempts that run on this worker.",
        ("kind",),
        [((kind,), number) for kind, number in sorted(ledger.by_kind.items())],
    )
    yield _gauge("slots", "How many tasks may run at once.", ledger.concurrency)
    yield _gauge("slots_in_use", "How many tasks run.", ledger.in_use)
    units = {name: 1 if name == RAM else UNIT for name in sorted(ledger.totals) if name != WHOLE_NODE}
    labels = {name: (UNIT_NAMES.get(name, name),) for name in units}
    totals, used = dict(ledger.totals), dict(ledger.used)
    yield _labelled(
        "capacity",
        "The amount of each resource.",
        ("resource",),
        [(labels[name], totals[name] / unit) for name, unit in units.items()],
    )
    yield _labelled(
        "capacity_in_use",
        "What running tasks use of it.",
        ("resource",),
        [(labels[name], used.get(name, 0) / unit) for name, unit in units.items()],
    )


def _labelled(name: str, text: str, labels: Sequence[str], values: Sequence[tuple[Sequence[str], float]]) -> Metric:
    """A gauge with labels. The values beyond MAX_NAMES are added up under `other`."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"synergon_{name}", text, labels=labels)
    for given, value in values[:MAX_NAMES]:
        family.add_metric(given, float(value))
    if len(values) > MAX_NAMES:
        family.add_metric(["other"] * len(labels), float(sum(value for _, value in values[MAX_NAMES:])))
    return family


# ---------------------------------------------------------------- what the store says


def _stored(numbers: StoreNumbers | None) -> Iterator[Metric]:
    yield _gauge("store_answers", "Whether the store answered this scrape (1) or not (0).", numbers is not None)
    if numbers is None:
        return
    yield _tasks(numbers.tasks)
    yield _oldest(numbers.queues)
    limits = [record for record in numbers.limits if record.value is not None]
    yield _labelled(
        "limit", "How many permits a limit has.", ("limit",), [((one.name,), one.value or 0) for one in limits]
    )
    yield _labelled(
        "limit_in_use",
        "How many of them are taken.",
        ("limit",),
        [((one.name,), one.in_use) for one in numbers.limits],
    )
    yield from _vitals(numbers.vitals)


def _tasks(counts: Mapping[tuple[str, str, State], int]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "synergon_tasks", "Live tasks in the store, of all workers.", labels=("kind", "queue", "state")
    )
    live = {name: number for name, number in counts.items() if not State(name[2]).is_final}
    largest = sorted(live.items(), key=lambda item: -item[1])
    for (queue, kind, state), number in largest[:MAX_NAMES]:
        family.add_metric((kind, queue, state), number)
    others: dict[State, int] = {}
    for (_, _, state), number in largest[MAX_NAMES:]:
        others[state] = others.get(state, 0) + number
    for state, number in others.items():
        family.add_metric((*OTHER, state), number)
    return family


def _oldest(queues: Iterable[QueueStatus]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "synergon_oldest_ready_seconds", "How long the oldest ready task has been due, of all workers.", labels=NAMES
    )
    ages = [((age.kind, queue.name), age.oldest_ready_seconds) for queue in queues for age in queue.kinds]
    ages.sort(key=lambda entry: -entry[1])
    for name, seconds in ages[:MAX_NAMES]:
        family.add_metric(name, seconds)
    if len(ages) > MAX_NAMES:
        family.add_metric(OTHER, ages[MAX_NAMES][1])
    return family


def _vitals(vitals: StoreVitals) -> Iterator[Metric]:
    gauges = {
        "pool_connections": ("How many database connections this worker may have.", vitals.pool_size),
        "pool_connections_in_use": ("How many of them calls use.", vitals.pool_in_use),
        "pool_calls_waiting": ("How many calls wait for a database connection.", vitals.pool_waiting),
        "oldest_transaction_seconds": (
            "The age of the oldest open transaction that the role may see.",
            vitals.oldest_transaction_seconds,
        ),
    }
    for name, (text, value) in gauges.items():
        if value is not None:
            yield _gauge(name, text, value)
    if vitals.dead_rows:
        dead = [((table,), number) for table, number in sorted(vitals.dead_rows.items())]
        yield _labelled("dead_rows", "Rows that PostgreSQL has not vacuumed yet.", ("table",), dead)


async def _read(node: Node) -> StoreNumbers | None:
    """The numbers of the store, read on the node's event loop. None if there is no answer in time, because the loop is
    blocked or the store is unavailable."""
    reading = _read_store(node)
    try:
        future = asyncio.run_coroutine_threadsafe(reading, node.loop)
    except RuntimeError:  # the loop is closed
        reading.close()
        return None
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), STORE_SECONDS)
    except (TimeoutError, SynergonError):
        return None


async def _read_store(node: Node) -> StoreNumbers:
    store = node.store
    declared = set(node.permits.names_of(node.permits.kinds)) if node.permits.is_needed else set()
    # Only those that the code declares: the names of others may contain keys.
    limits = [record for record in await store.limits() if record.name in declared] if declared else []
    return StoreNumbers(await store.counts(), (await store.status()).queues, limits, await store.vitals())
