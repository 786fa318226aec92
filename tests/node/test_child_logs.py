"""What task functions log in child processes: the node logs it, with its name and the task."""

from __future__ import annotations

import logging

import pytest
from tests.node import process_functions
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, ended, until

from synergon import Engine


def of_shop(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of the logger that the task functions use."""
    return [line for line in caplog.records if line.name == "shop.images"]


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def test_a_line_of_a_child_has_its_level_node_task_and_place(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    log = on(engine, process_functions.log_lines)
    async with engine.worker(name="left"):
        handle = await log.enqueue()
        await handle.result(PATIENCE_SECONDS)
    info, error = of_shop(caplog)
    assert info.getMessage() == f"task {handle.id} (log_lines): on level info"
    assert (info.levelno, error.levelno) == (logging.INFO, logging.ERROR)
    assert (info.node, info.task_id, info.kind) == ("left", handle.id, "log_lines")  # type: ignore[attr-defined]
    assert info.filename == "process_functions.py"
    assert "ValueError: a reason" in str(error.exc_text)


async def test_the_level_is_that_of_the_node(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    log = on(engine, process_functions.log_lines)
    with caplog.at_level(logging.ERROR):
        async with engine.worker():
            await (await log.enqueue()).result(PATIENCE_SECONDS)
    assert [line.levelno for line in of_shop(caplog)] == [logging.ERROR]


async def test_what_a_child_has_logged_before_it_dies_is_logged(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    log = on(engine, process_functions.log_lines)
    async with engine.worker():
        await ended(await log.enqueue("die"))
    assert {line.levelno for line in of_shop(caplog)} == {logging.INFO, logging.ERROR}


async def test_a_line_between_two_jobs_is_logged_without_a_task(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    log = on(engine, process_functions.log_lines)
    async with engine.worker():
        await (await log.enqueue("log later")).result(PATIENCE_SECONDS)
        await until(lambda: len(of_shop(caplog)) == 3)
    last = of_shop(caplog)[-1]
    assert (last.getMessage(), last.task_id) == ("between two jobs", None)  # type: ignore[attr-defined]
