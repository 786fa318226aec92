"""Traces: what spans there are, how they hang together, and what they say."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from tests.conftest import NewEngine
from tests.contrib import traced_functions
from tests.contrib.traced_functions import on, spans_of
from tests.support import PATIENCE_SECONDS, ended, until

from synergon import (
    Batch,
    BatchErrors,
    Cancel,
    Context,
    Discard,
    Engine,
    KeyConflict,
    OptionError,
    Retry,
    RetryAfter,
    Snooze,
    TaskLogFilter,
    TaskRecord,
    injected,
)
from synergon.contrib import otel

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("shop")


@pytest.fixture(autouse=True)
def _no_spans_of_other_tests() -> None:
    exporter.clear()


@pytest.fixture
def engine(new_engine: NewEngine, url: str) -> Engine:
    made = new_engine(url, name="kim")
    otel.instrument(made, tracer_provider=provider)
    return made


def spans(name: str | None = None) -> list[ReadableSpan]:
    """The spans with this name, in the order of their starts."""
    found = [span for span in exporter.get_finished_spans() if name in (None, span.name)]
    return sorted(found, key=lambda span: span.start_time or 0)


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return format_span_id(span.context.span_id)


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return format_trace_id(span.context.trace_id)


def parent_id(span: ReadableSpan) -> str | None:
    return None if span.parent is None else format_span_id(span.parent.span_id)


def links(span: ReadableSpan) -> list[str]:
    return [format_span_id(link.context.span_id) for link in span.links]


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[Any]:
    return [dict(event.attributes or {})["exception.type"] for event in span.events]


def header(record: TaskRecord) -> list[str]:
    """The W3C header that is kept with the task: version, trace id and span id, without flags."""
    kept: str = record.meta["trace_context"]["traceparent"]
    return kept.split("-")[:3]


async def test_an_attempt_continues_the_trace_of_its_producer_and_links_to_it(engine: Engine) -> None:
    @engine.task
    async def greet() -> None: ...

    async with engine.worker():
        with tracer.start_as_current_span("request") as request:
            handle = await greet.enqueue()
        await handle.result(PATIENCE_SECONDS)
    (producer,), (consumer,) = spans("enqueue greet"), spans("process greet")
    assert (producer.kind, consumer.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert parent_id(producer) == format_span_id(request.get_span_context().span_id)
    assert parent_id(consumer) == span_id(producer)
    assert links(consumer) == [span_id(producer)]
    assert said(producer) == {
        "messaging.system": "synergon",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": "default",
        "messaging.message.id": str(handle.id),
        "messaging.synergon.kind": "greet",
    }
    assert said(consumer) == {
        "messaging.system": "synergon",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(handle.id),
        "messaging.client.id": "kim",
        "messaging.synergon.kind": "greet",
        "messaging.synergon.attempt": 1,
    }


async def test_each_attempt_has_a_span_and_its_error(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=2, first=0))
    async def fetch(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("away")

    async with engine.worker():
        await (await fetch.enqueue()).result(PATIENCE_SECONDS)
    (producer,), (first, second) = spans("enqueue fetch"), spans("process fetch")
    assert [said(span)["messaging.synergon.attempt"] for span in (first, second)] == [1, 2]
    assert links(first) == links(second) == [span_id(producer)]
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert said(first)["error.type"] == "ConnectionError"
    assert events(first) == ["ConnectionError"]
    assert "error.type" not in said(second)


@pytest.mark.parametrize(
    "raised", [Snooze(3600), RetryAfter(3600), Discard("no"), Cancel("no")], ids=lambda raised: type(raised).__name__
)
async def test_what_a_function_asks_for_is_no_error(engine: Engine, raised: Exception) -> None:
    @engine.task
    def ask() -> None:
        raise raised

    async with engine.worker():
        await ask.enqueue()
        await until(lambda: bool(spans("process ask")))
    (consumer,) = spans("process ask")
    assert consumer.status.status_code is StatusCode.UNSET
    assert not consumer.events


async def test_a_timeout_is_an_error_and_a_cancellation_is_not(engine: Engine) -> None:
    started = asyncio.Event()

    @engine.task(timeout=0.05, retry=Retry(attempts=1))
    async def late() -> None:
        await asyncio.sleep(60)

    @engine.task
    async def unwanted() -> None:
        started.set()
        await asyncio.sleep(60)

    async with engine.worker():
        await ended(await late.enqueue())
        handle = await unwanted.enqueue()
        await started.wait()
        await handle.cancel()
        await ended(handle)
    (timed_out,), (cancelled,) = spans("process late"), spans("process unwanted")
    assert (said(timed_out)["error.type"], events(timed_out)) == ("Timeout", ["Timeout"])
    assert cancelled.status.status_code is StatusCode.UNSET


async def test_spans_of_coroutines_and_threads_are_inside_that_of_the_attempt(engine: Engine) -> None:
    @engine.task
    async def in_loop() -> None:
        tracer.start_span("own work").end()

    @engine.task
    def in_thread() -> None:
        tracer.start_span("own work").end()

    async with engine.worker():
        for kind in (in_loop, in_thread):
            exporter.clear()
            await (await kind.enqueue()).result(PATIENCE_SECONDS)
            (own,), (consumer,) = spans("own work"), spans(f"process {kind.kind}")
            assert parent_id(own) == span_id(consumer)


async def _runs_in_a_child_process(engine: Engine, file: Path) -> None:
    work = on(engine, traced_functions.work, runs_in="process")
    on(engine, traced_functions.leaf)
    async with engine.worker(drain=True):
        with tracer.start_as_current_span("request") as request:
            await work.enqueue()
    (producer,), (consumer,), (leaf,) = spans("enqueue work"), spans("process work"), spans("process leaf")
    by_name = {span["name"]: span for span in spans_of(file)}
    own, child_producer = by_name["own work"], by_name["enqueue leaf"]
    assert parent_id(consumer) == span_id(producer)
    assert own["parent_id"] == f"0x{span_id(consumer)}"
    assert child_producer["parent_id"] == own["context"]["span_id"]
    assert child_producer["attributes"]["messaging.operation.type"] == "create"
    assert f"0x{parent_id(leaf)}" == child_producer["context"]["span_id"]
    trace = format_trace_id(request.get_span_context().trace_id)
    assert {trace_id(span) for span in spans()} == {trace}
    assert {span["context"]["trace_id"] for span in by_name.values()} == {f"0x{trace}"}


async def test_a_trace_goes_through_a_child_process_to_the_child_that_it_enqueues(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANS_FILE", str(tmp_path / "spans"))
    await _runs_in_a_child_process(engine, tmp_path / "spans")


async def test_a_trace_goes_through_postgresql(
    new_engine: NewEngine, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANS_FILE", str(tmp_path / "spans"))
    engine = new_engine(postgres_url)
    otel.instrument(engine, tracer_provider=provider)
    await _runs_in_a_child_process(engine, tmp_path / "spans")


async def test_a_flow_with_a_map_is_one_trace(engine: Engine) -> None:
    @engine.task
    async def pages() -> list[int]:
        return [1, 2]

    @engine.task
    async def read(page: int, ctx: Context) -> int:
        assert ctx.meta["site"] == "a"
        return page

    @engine.task
    async def total(found: list[int], ctx: Context = injected) -> int:
        ctx.enqueue(note.call())
        return sum(found)

    @engine.task
    async def note() -> None: ...

    flow = engine.flow("site")
    first = flow.add(pages.call())
    each = flow.map(read.with_options(meta={"site": "a"}), over=first)
    flow.add(total.call(each.results))
    async with engine.worker(drain=True):
        await flow.enqueue()
    (producer,) = spans("enqueue")
    assert said(producer)["messaging.batch.message_count"] == 3
    assert len({trace_id(span) for span in spans()}) == 1
    of_steps = [*spans("process pages"), *spans("process read"), *spans("process total")]
    assert [links(span) for span in of_steps] == [[span_id(producer)]] * 4
    (child_producer,), (last,) = spans("enqueue note"), spans("process note")
    assert parent_id(child_producer) == span_id(spans("process total")[0])
    assert parent_id(last) == span_id(child_producer)


async def test_a_group_and_what_follows_it_are_one_trace(engine: Engine) -> None:
    @engine.task
    async def part() -> None: ...

    @engine.task
    async def after() -> None: ...

    async with engine.worker(drain=True):
        await engine.group("parts", [part.call(), part.call()], then=after.call())
    assert len(spans("process part")) == 2
    assert len(spans("process after")) == 1
    assert len({trace_id(span) for span in spans()}) == 1


async def test_a_batch_links_to_the_producer_of_each_item_and_has_their_errors(engine: Engine) -> None:
    @engine.task(batch=Batch(size=3, wait=60), retry=Retry(attempts=1))
    async def store(rows: list[int]) -> None:
        raise BatchErrors({1: ValueError("no"), 2: Snooze(3600)})

    with tracer.start_as_current_span("start of the worker"):
        async with engine.worker():
            for number in range(3):
                await store.enqueue(number)
            await until(lambda: bool(spans("process store")))
    producers = [span_id(span) for span in spans("enqueue store")]
    (consumer,) = spans("process store")
    assert links(consumer) == producers
    assert len(set(producers)) == 3
    ids = [said(span)["messaging.message.id"] for span in spans("enqueue store")]
    assert [dict(link.attributes or {})["messaging.message.id"] for link in consumer.links] == ids
    assert parent_id(consumer) is None
    assert said(consumer)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in said(consumer)
    assert events(consumer) == ["ValueError"]


async def test_many_calls_share_one_producer_span(engine: Engine) -> None:
    @engine.task
    async def greet(name: str) -> None: ...

    async with engine.worker(drain=True):
        await greet.enqueue_many([("Ada",), ("Bob",)])
    (producer,) = spans("enqueue greet")
    assert said(producer)["messaging.batch.message_count"] == 2
    assert [links(span) for span in spans("process greet")] == [[span_id(producer)]] * 2


async def test_a_call_that_stores_nothing_says_why(engine: Engine) -> None:
    @engine.task
    async def greet() -> None: ...

    once = greet.with_options(key="one", on_conflict="raise")
    async with engine:
        await once.enqueue()
        with pytest.raises(KeyConflict):
            await once.enqueue()
    assert [events(span) for span in spans("enqueue greet")] == [[], ["KeyConflict"]]


async def test_a_task_without_a_producer_begins_a_trace_of_its_own(new_engine: NewEngine, url: str) -> None:
    engine, plain = new_engine(url), new_engine(url)
    otel.instrument(engine, tracer_provider=provider)

    @engine.task
    async def greet() -> None: ...

    foreign = {"trace_context": ["used by the application"]}
    async with plain:
        with tracer.start_as_current_span("start of the worker"):
            for meta in ({}, foreign):
                await plain.enqueue([plain.call("greet").with_options(meta=meta)])
            async with engine.worker(drain=True):
                pass
        assert [record.meta for record in await plain.tasks()] == [foreign, {}]
    assert [(parent_id(span), links(span)) for span in spans("process greet")] == [(None, [])] * 2


async def test_the_metadata_of_the_caller_is_kept(engine: Engine) -> None:
    @engine.task
    async def greet(ctx: Context) -> list[str]:
        assert ctx.meta["customer"] == 42
        return sorted(ctx.meta)

    async with engine.worker():
        handle = await greet.with_options(meta={"customer": 42}).enqueue()
        assert await handle.result(PATIENCE_SECONDS) == ["customer", "trace_context"]
        (producer,) = spans("enqueue greet")
        record = await handle.status()
    assert record.meta["customer"] == 42
    assert header(record) == ["00", trace_id(producer), span_id(producer)]


async def test_metadata_without_room_is_stored_as_it_is(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    otel.instrument(engine, tracer_provider=provider)

    @engine.task
    async def greet() -> None: ...

    full = {"text": "x" * (2**20 - 20)}
    async with engine.worker():
        handle = await greet.with_options(meta=full).enqueue()
        await handle.result(PATIENCE_SECONDS)
        assert (await handle.status()).meta == full
    assert links(spans("process greet")[0]) == []


def test_calls_without_an_event_loop_are_traced(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    engine = Engine(f"sqlite:///{file}")
    otel.instrument(engine, tracer_provider=provider)

    @engine.task
    async def greet() -> None: ...

    try:
        with tracer.start_as_current_span("request") as request:
            greet.enqueue_sync()
            connection = sqlite3.connect(file, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            greet.with_options(conn=connection).enqueue_sync()
            flow = engine.flow("one")
            flow.add(greet.call())
            flow.enqueue_sync(conn=connection)
            connection.execute("COMMIT")
            connection.close()
        kept = [header(record) for record in engine.tasks_sync()]
    finally:
        engine.sync_bridge.close()
    trace = format_trace_id(request.get_span_context().trace_id)
    producers = spans("enqueue greet")
    assert {trace_id(span) for span in producers} == {trace}
    assert kept == [["00", trace, span_id(span)] for span in reversed(producers)]


async def test_calls_in_a_transaction_of_the_caller_are_traced(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)
    otel.instrument(engine, tracer_provider=provider)

    @engine.task
    async def greet() -> None: ...

    flow = engine.flow("one")
    flow.add(greet.call())
    async with engine:
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        await greet.with_options(conn=connection).enqueue()
        await flow.enqueue(conn=connection)
        connection.execute("COMMIT")
        connection.close()
        kept = [header(record) for record in await engine.tasks()]
    assert kept == [["00", trace_id(span), span_id(span)] for span in reversed(spans("enqueue greet"))]
    assert len(kept) == 2


async def test_records_of_a_function_have_the_trace_id_wherever_it_runs(
    new_engine: NewEngine, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(sqlite_url, name="kim")
    otel.instrument(engine, tracer_provider=provider)
    caplog.handler.addFilter(TaskLogFilter())
    in_child = on(engine, traced_functions.work, name="in_child", runs_in="process")
    in_thread = on(engine, traced_functions.work, name="in_thread", runs_in="thread")
    on(engine, traced_functions.leaf)

    @engine.task
    async def in_loop() -> None:
        logging.getLogger("shop").warning("hi")

    async with engine.worker():
        for kind in (in_child, in_child, in_thread, in_loop):  # the second one in the process of the first
            handle = await kind.enqueue()
            await handle.result(PATIENCE_SECONDS)
            (record,) = [line for line in caplog.records if line.name == "shop"]
            *_, consumer = spans(f"process {kind.kind}")
            fields = {name: getattr(record, name) for name in ("node", "task_id", "kind", "attempt", "trace_id")}
            assert fields == {
                "node": "kim",
                "task_id": handle.id,
                "kind": kind.kind,
                "attempt": 1,
                "trace_id": trace_id(consumer),
            }
            caplog.clear()


async def test_errors_in_a_child_process_have_their_own_types(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    otel.instrument(engine, tracer_provider=provider)
    fail = on(engine, traced_functions.fail, runs_in="process", retry=Retry(attempts=1))
    async with engine.worker():
        await ended(await fail.enqueue("no"))
    (consumer,) = spans("process fail")
    assert events(consumer) == ["ValueError"]
    assert "ValueError: no" in json.dumps(dict(consumer.events[0].attributes or {}))


async def test_an_engine_is_traced_once(engine: Engine) -> None:
    with pytest.raises(OptionError, match="traced already"):
        otel.instrument(engine)


@pytest.mark.parametrize(("module", "package"), [("otel", "opentelemetry"), ("sentry", "sentry_sdk")])
def test_a_missing_package_is_named_with_the_way_to_install_it(module: str, package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; import synergon.contrib.{module}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"need the package {package!r}: pip install" in ended.stderr.splitlines()[-1]
