"""The metrics of a worker, read by a parser of Prometheus: they add up exactly with what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401  a fixture
from tests.support import Gate, ended, make_troubled, until

from synergon import Context, Discard, Engine, Resources, Retry, Snooze
from synergon.errors import KeyConflict
from synergon.model.claims import Claim
from synergon.node import metrics as counted
from synergon.node.health import exposition
from synergon.node.metrics import Metrics
from synergon.worker import Worker

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def _no_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape of these tests is a new one."""
    if "cached" not in request.node.name:
        monkeypatch.setattr(exposition, "CACHE_SECONDS", 0.0)


def get(worker: Worker) -> tuple[int, str]:
    """The answer to a scrape. Blocks."""
    assert worker.monitor.address is not None
    host, _, port = worker.monitor.address.rpartition(":")
    with closing(HTTPConnection(host, int(port), timeout=10)) as connection:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


async def scrape(worker: Worker) -> Samples:
    """All samples of a scrape."""
    status, text = await asyncio.to_thread(get, worker)
    assert status == 200, text
    found = list(_samples(text))
    assert len(dict(found)) == len(found), "no sample occurs twice"
    return dict(found)


def _samples(text: str) -> Iterator[tuple[tuple[str, frozenset[tuple[str, str]]], float]]:
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            yield (sample.name, frozenset(sample.labels.items())), sample.value


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels, perhaps among others."""
    return sum(
        number
        for (sample, given), number in samples.items()
        if sample == f"synergon_{name}" and labels.items() <= dict(given).items()
    )


def register(engine: Engine, gate: Gate) -> dict[str, Any]:
    """Kinds that end in every way."""

    @engine.task(queue="mail")
    async def work(number: int) -> int:
        return number

    @engine.task(retry=Retry(attempts=3, first=0, jitter=0))
    async def fail() -> None:
        raise ValueError

    @engine.task
    def discard() -> None:
        raise Discard

    @engine.task
    async def snooze(ctx: Context) -> None:
        if ctx.attempt == 1 and not ctx.meta:
            await engine.update_meta(ctx.task_id, {"seen": True})
            raise Snooze(0)

    @engine.task
    async def parent(ctx: Context) -> None:
        for number in range(4):
            ctx.enqueue(work.call(number))

    @engine.task(max_running_global=2)
    async def hold() -> None:
        await gate.hold()

    return {"work": work, "fail": fail, "discard": discard, "snooze": snooze, "parent": parent, "hold": hold}


async def test_the_numbers_of_a_known_workload_add_up_exactly(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    gate = Gate()
    kinds = register(engine, gate)
    worker = engine.worker(health_listen="127.0.0.1:0", concurrency=50)
    async with worker as node:
        before = await scrape(worker)
        assert value(before, "tasks_accepted_total") == value(before, "attempts_started_total") == 0
        handles = await kinds["work"].enqueue_many([(number,) for number in range(30)])
        handles += [await kinds["work"].enqueue(1), await kinds["fail"].enqueue(), await kinds["discard"].enqueue()]
        handles += [await kinds["parent"].enqueue(), await kinds["snooze"].enqueue()]
        held = await kinds["hold"].enqueue_many([(), (), ()])
        for handle in handles:
            await ended(handle)
        await until(lambda: node.metrics.tallies["work", "mail"].succeeded == 35)
        await until(lambda: node.ledger.by_kind["hold"] == 2 and node.ledger.in_use == 2)
        during = await scrape(worker)
        assert value(during, "running", kind="hold") == value(during, "slots_in_use") == 2
        assert value(during, "slots") == 50
        assert value(during, "tasks", kind="hold", state="running") == 2
        assert value(during, "limit_in_use", limit="kind:hold") == 2
        assert value(during, "tasks", kind="hold", state="ready") == 1
        assert value(during, "oldest_ready_seconds", kind="hold", queue="default") > 0
        assert value(during, "attempts_started_total") == value(during, "attempts_finished_total") + 2
        gate.open()
        for handle in held:
            await ended(handle)
        await node.completer.flushed()
        after = await scrape(worker)

    accepted = {"work": 35, "fail": 1, "discard": 1, "parent": 1, "snooze": 1, "hold": 3}
    for kind, number in accepted.items():
        assert value(after, "tasks_accepted_total", kind=kind) == number, kind
    attempts = {**accepted, "fail": 3, "snooze": 2}
    for kind, number in attempts.items():
        assert value(after, "attempts_started_total", kind=kind) == number, kind
        assert value(after, "attempts_finished_total", kind=kind) == number, kind
        assert value(after, "run_seconds_count", kind=kind) == number, kind
        assert value(after, "wait_seconds_count", kind=kind) == number, kind
    assert value(after, "attempts_finished_total", kind="work", queue="mail", reason="succeeded") == 35
    assert value(after, "attempts_finished_total", kind="fail", reason="retried") == 2
    assert value(after, "attempts_finished_total", kind="fail", reason="exhausted") == 1
    assert value(after, "attempts_finished_total", kind="discard", reason="discarded") == 1
    assert value(after, "attempts_finished_total", kind="snooze", reason="snoozed") == 1
    assert value(after, "limit", limit="kind:hold") == 2
    assert value(after, "claim_tasks_sum") == sum(attempts.values())
    assert value(after, "claim_tasks_count") == value(after, "claim_seconds_count")
    assert value(after, "tasks") == value(after, "slots_in_use") == value(after, "stale_outcomes_total") == 0
    assert value(after, "ready") == value(after, "store_answers") == value(after, "sweep_mode") == 1
    assert not any(name == "synergon_oldest_ready_seconds" for name, _ in after)
    is_server = url.startswith("postgresql")
    assert is_server == (value(after, "pool_connections") > 0)
    assert {dict(labels)["table"] for name, labels in after if name == "synergon_dead_rows"} == (
        {"task", "history"} if is_server else set()
    )
    assert 0 <= value(after, "lease_age_seconds") < 60
    assert not any("id" in dict(labels) for _, labels in after)


async def test_capacity_is_in_the_units_that_users_write(new_engine: NewEngine, memory_url: str) -> None:
    given = Resources(cpu=2, ram="1GiB", custom={"license": 3})
    engine = new_engine(memory_url, resources=given, threads=7, child_processes=4, queues={"mail": 5})
    gate = Gate()

    @engine.task(queue="mail", cost=Resources(cpu=0.5, ram="100MiB"))
    async def work() -> None:
        await gate.hold()

    worker = engine.worker(health_listen="127.0.0.1:0")
    async with worker:
        await work.enqueue()
        await gate.until_reached()
        samples = await scrape(worker)
        gate.open()
    names = {"cpu": 2, "ram": 2**30, "license": 3, "threads": 7, "child_processes": 4, "queue mail": 5}
    assert {name: value(samples, "capacity", resource=name) for name in names} == names
    used = {"cpu": 0.5, "ram": 100 * 2**20, "license": 0, "queue mail": 1}
    assert {name: value(samples, "capacity_in_use", resource=name) for name in used} == used


async def test_a_scrape_without_the_store_has_the_rest(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    stores = make_troubled(engine)
    worker = engine.worker(health_listen="127.0.0.1:0")
    async with worker:
        assert value(await scrape(worker), "store_answers") == 1
        with stores[-1].away("counts"):
            samples = await scrape(worker)
        assert value(samples, "store_answers") == 0
        assert value(samples, "slots") == 500
        assert not any(name == "synergon_tasks" for name, _ in samples)


async def test_a_scrape_is_cached(new_engine: NewEngine, memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "CACHE_SECONDS", 3600.0)
    engine = new_engine(memory_url)
    stores = make_troubled(engine)
    worker = engine.worker(health_listen="127.0.0.1:0")
    async with worker:
        await until(lambda: stores[-1].calls["counts"] == 1)  # by the depth recorder, which counts once a minute
        first = await asyncio.gather(*(scrape(worker) for _ in range(5)))
        assert all(samples == first[0] for samples in first)
        assert stores[-1].calls["counts"] == 2


async def test_without_the_package_a_scrape_says_what_to_install(
    new_engine: NewEngine, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.node.health.service.is_installed", lambda: False)
    engine = new_engine(memory_url)
    worker = engine.worker(health_listen="127.0.0.1:0")
    async with worker:
        status, text = await asyncio.to_thread(get, worker)
        assert status == 404
        assert "synergon[metrics]" in text


def test_further_names_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "MAX_NAMES", 2)
    metrics = Metrics()
    for number in range(5):
        metrics.note_started([Claim(number, 1, f"kind{number}", "default", b"", 1, None, None, (), None)])
    started = {name: tally.started for name, tally in metrics.tallies.items()}
    assert started == {("kind0", "default"): 1, ("kind1", "default"): 1, ("other", "other"): 3}


async def test_a_task_with_a_key_that_is_taken_is_accepted_once(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def work() -> None: ...

    worker = engine.worker(health_listen="127.0.0.1:0")
    async with worker:
        await work.with_options(key="one", delay=60).enqueue()
        with pytest.raises(KeyConflict):
            await work.with_options(key="one", delay=60, on_conflict="raise").enqueue()
        await work.with_options(key="one", delay=60, on_conflict="return").enqueue()
        assert value(await scrape(worker), "tasks_accepted_total") == 1
