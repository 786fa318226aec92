"""Records of task functions name their attempt, wherever the function runs; other records do not."""

from __future__ import annotations

import asyncio
import json
import logging
import sys

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions

from synergon import TaskLogFilter
from synergon.errors import OptionError
from synergon.model.log_records import JsonFormatter, running_task


async def test_records_of_a_child_process_and_a_thread_name_the_attempt(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, name="kim")
    in_child = process_functions.on(engine, process_functions.log_here, name="in_child", runs_in="process")
    in_thread = process_functions.on(engine, process_functions.log_here, name="in_thread", runs_in="thread")
    async with engine.worker():
        for kind in (in_child, in_thread):
            handle = await kind.enqueue("shop")
            fields = ["kim", handle.id, kind.kind, 1]
            own = ["kim", handle.id, "mine", 1]
            assert await handle.result(30) == [["plain", *fields], ["own", *own]]


async def test_records_of_coroutines_that_run_at_once_name_their_own_attempts(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, name="kim")
    barrier = asyncio.Barrier(3)

    async def log_deeper() -> list[object]:
        await barrier.wait()
        return process_functions.log_here("shop")[:1]

    @engine.task
    async def work() -> list[object]:
        return await asyncio.create_task(log_deeper())

    async with engine.worker():
        handles = await work.enqueue_many([(), (), ()])
        for handle in handles:
            assert await handle.result(30) == [["plain", "kim", handle.id, "work", 1]]
        assert running_task.get() is None


async def test_records_of_middleware_name_the_attempt(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    seen: list[object] = []

    @engine.middleware
    async def around(ctx: object, call_next: object) -> object:
        seen.extend(process_functions.log_here("shop")[:1])
        return await call_next()  # type: ignore[operator]

    @engine.task
    async def work() -> None: ...

    async with engine.worker(name="kim"):
        handle = await work.enqueue()
        await handle.result(30)
    assert seen == [["plain", "kim", handle.id, "work", 1]]


def test_records_of_other_code_are_as_they_were() -> None:
    record = logging.makeLogRecord({"msg": "x"})
    before = dict(vars(record))
    assert TaskLogFilter().filter(record)
    assert vars(record) == before


def a_record(message: str, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "shop", "levelno": 30, "levelname": "WARNING", "msg": message, "created": 1.5, **more}
    )


def test_a_record_becomes_one_line_of_json() -> None:
    line = JsonFormatter("kim").format(a_record("a\nb \x1b[0m \ud800", task_id=7, kind="work", attempt=2))
    assert "\n" not in line
    assert "\x1b" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "warning",
        "logger": "shop",
        "message": "a\nb \x1b[0m \\ud800",
        "node": "kim",
        "task_id": 7,
        "kind": "work",
        "attempt": 2,
    }


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        line = JsonFormatter("kim").format(a_record("failed", exc_info=sys.exc_info(), node="lee"))
    document = json.loads(line)
    assert document["node"] == "lee"
    assert document["exception"].startswith("Traceback (most recent call last):")
    assert document["exception"].endswith("ValueError: no")
    assert "task_id" not in document


def test_json_is_refused_where_the_app_formats_records_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from synergon.cli import logs

    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    with pytest.raises(OptionError, match="--log-format json has no effect"):
        logs.configure(logs.Level.INFO, "kim", logs.Format.JSON)
