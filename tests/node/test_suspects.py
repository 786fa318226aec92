"""A suspect whose function cannot run in a child process runs alone on its node, without waiting for a sweep."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, a_row, until, until_state

from synergon import Engine, State, TaskType
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.node.capacity import reservation
from synergon.node.node import Node


async def make_suspect(engine: Engine, kind: str) -> None:
    """Let a node die that has claimed the task of this kind."""
    await engine._store.register(a_row("dead", kind))
    claims = await engine._store.claim(ClaimRequest(node_id="dead", kinds=(KindRequest(kind=kind, count=1),), limit=1))
    assert len(claims) == 1
    await engine._store.reap(["dead"], 1)


async def until_reserved(node: Node, task_id: int) -> None:
    await until(lambda: node.reservation.reserved is not None and node.reservation.reserved.id == task_id)


async def test_it_starts_when_the_last_other_task_has_ended_and_others_when_it_has_ended(
    new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservation, "PATIENCE_SECONDS", 3600.0)  # nor does it wait for a reservation
    engine = new_engine(url, concurrency=3, sweep=3600)
    before, within = Gate(), Gate()

    @engine.task(priority=1)
    async def first() -> None:
        await before.hold()

    @engine.task
    async def suspicious() -> None:
        await within.hold()

    @engine.task(priority=-1)
    async def last() -> None: ...

    async with engine:
        suspect = await suspicious.enqueue()
        await make_suspect(engine, "suspicious")
        earlier = await first.enqueue()
        async with engine.worker():
            await before.until_reached()
            assert (await suspect.status()).state is State.READY
            before.open()
            await within.until_reached()
            later = await last.enqueue()
            told = await later.explain()
            assert not told.can_start_on, told
            assert (await later.status()).state is State.READY
            within.open()
            for handle in (earlier, suspect, later):
                await handle.result(PATIENCE_SECONDS)
        record = await suspect.status()
    assert (record.attempts, record.crashes, record.claim_no) == (1, 0, 2)


async def test_a_node_makes_room_for_one_that_has_waited(
    new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservation, "PATIENCE_SECONDS", 0.1)
    engine = new_engine(url, concurrency=3, sweep=0.05)
    gate = Gate()
    ran: list[str] = []

    @engine.task(priority=1)
    async def first() -> None:
        await gate.hold()
        ran.append("first")

    @engine.task
    async def suspicious() -> None:
        ran.append("suspicious")

    async with engine:
        suspect = await suspicious.enqueue()
        await make_suspect(engine, "suspicious")
        await first.enqueue()
        async with engine.worker() as node:
            await gate.until_reached()
            await until_reserved(node, suspect.id)
            behind = await first.enqueue()
            assert "has reserved capacity for task" in (await behind.explain()).sentence
            gate.open()
            await suspect.result(PATIENCE_SECONDS)
            await until_state(behind, State.SUCCEEDED)
    assert ran == ["first", "suspicious", "first"]


@pytest.mark.parametrize(
    "function",
    [process_functions.wrap_the_error_of_a_transaction, process_functions.swallow_the_error_of_a_transaction],
    ids=["wraps", "swallows"],
)
@pytest.mark.parametrize("store", ["sqlite_url", "postgres_url"])
async def test_a_function_that_hides_that_it_needs_a_transaction_is_handed_back_and_runs_alone(
    new_engine: NewEngine, request: pytest.FixtureRequest, store: str, function: TaskType[..., [], Any, int]
) -> None:
    engine = new_engine(request.getfixturevalue(store))
    kind = on(engine, function, runs_in="loop")
    async with engine:
        handle = await kind.enqueue()
        await make_suspect(engine, kind.kind)
        async with engine.worker():
            assert await handle.result(PATIENCE_SECONDS) == os.getpid(), "in the process of the worker"
        record = await handle.status()
    assert (record.attempts, record.crashes, [error.type for error in record.errors]) == (1, 0, ["NodeDied"])
    assert record.claim_no == 3, "of the dead node, in a child process, alone on the node"
    assert not record.is_suspect
