"""A warning for ready tasks whose kind no live worker knows."""

from __future__ import annotations

import logging

import pytest
from tests.conftest import NewEngine

from synergon.model.clock import SystemClock
from synergon.node.duties.unknown_kinds import UnknownKinds


async def test_a_kind_that_no_live_worker_knows_is_named_once(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url)

    @engine.task
    async def known() -> None: ...

    async with engine, engine.worker(queues=["other"]):
        await engine.enqueue([engine.call("resize") for _ in range(12)])
        await known.enqueue()
        unknown = UnknownKinds(engine._store, SystemClock(), logging.LoggerAdapter(logging.getLogger("test")))
        await unknown.look()
        await unknown.look()
        said = [record.getMessage() for record in caplog.records if record.name == "test"]
    assert len(said) == 1
    assert said[0].startswith("12 ready tasks are of kind 'resize' and known to no live worker; import the module")


async def test_it_is_named_again_after_a_worker_has_known_it(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url)

    @engine.task
    async def resize() -> None: ...

    async with engine:
        unknown = UnknownKinds(engine._store, SystemClock(), logging.LoggerAdapter(logging.getLogger("test")))
        await resize.enqueue()
        await unknown.look()
        async with engine.worker(queues=["other"]):
            await unknown.look()
        await unknown.look()
    said = [record.getMessage() for record in caplog.records if record.name == "test"]
    assert len(said) == 2
    assert said[0].startswith("1 ready task is of kind 'resize'")
