"""What a node says of itself is in its row, and who is not there is told nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Final

import pytest
from msgspec.structs import replace
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import Gate, a_row, row_of, until

from synergon import OptionError
from synergon.model.process_identity import this_process

BIG_LEASE: Final = 3600
"""With this one the next heartbeat is ten minutes away."""


@pytest.mark.usefixtures("quick_heartbeat")
async def test_what_a_node_says_of_itself_is_in_its_row_at_once_and_renewed_with_its_lease(
    new_engine: NewEngine, url: str
) -> None:
    engine, gate = new_engine(url), Gate()

    @engine.task
    async def hold() -> None:
        await gate.hold()

    async def says(**running: int) -> bool:
        record = await row_of(engine, node)
        assert record.state.is_published
        return record.state.running == running

    async def said_at() -> float:
        return time.monotonic() - (await row_of(engine, node)).published_ago

    async def is_said_anew() -> bool:
        return await said_at() > first_said_at + 0.05

    async with engine.worker(concurrency=3) as node:
        assert (await row_of(engine, node)).state.slots_free == 3, "it was said when it registered"
        await hold.enqueue()
        await until(lambda: says(hold=1))
        assert (await row_of(engine, node)).state.slots_free == 2
        gate.open()
        await until(says)
        first_said_at = await said_at()
        await until(is_said_anew)  # although nothing is new


async def test_a_cordon_is_published_without_waiting_for_the_next_heartbeat(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, lease=BIG_LEASE)

    @engine.task
    async def work() -> None: ...

    async def says_cordoned(is_so: bool) -> bool:
        return (await row_of(engine, node)).state.is_cordoned is is_so

    async with engine.worker() as node:
        await engine.cordon(node.id)
        await until(lambda: says_cordoned(True))
        await engine.uncordon(node.id)
        await until(lambda: says_cordoned(False))


# ---------------------------------------------------------------- who is not there


async def test_nobody_is_told_who_is_not_there_and_that_is_written_down(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def work() -> None: ...

    async with engine:
        process = replace(this_process(), pid=os.getpid(), started=0.5)  # another process had this pid before
        await engine._store.register(a_row("gone", "work", name="kim", process=process))
        for give in (engine.cordon, engine.uncordon, engine.drain, engine.restart, engine.shut_down):
            with pytest.raises(OptionError, match=rf"node 'gone' \(kim\) is dead: its process {process.pid} is gone"):
                await give("gone")
            with pytest.raises(OptionError, match=r"there is no node 'lee'; registered are: gone \(kim\)"):
                await give("lee")
        orders = await engine.audit()
        assert all(order.is_rejected for order in orders)
        assert Counter((order.subject, order.outcome) for order in orders) == {
            ("gone", "rejected: its process is gone"): 5,
            ("lee", "rejected: no node of that id"): 5,
        }
        assert [node.cordoned_at for node in await engine.nodes()] == [None]


async def test_a_node_elsewhere_whose_lease_is_over_is_dead_and_a_nul_is_no_id(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def work() -> None: ...

    async with engine:
        process = replace(this_process(), host="elsewhere", boot_id="another", pid=1)
        await engine._store.register(a_row("far", "work", name="kim", process=process, lease=1))
        for give in (engine.cordon, engine.uncordon, engine.drain, engine.restart, engine.shut_down):
            with pytest.raises(OptionError, match=r"node 'far' \(kim\) is dead: its lease has been over for"):
                await give("far")
            with pytest.raises(OptionError, match="has no NUL in it"):
                await give("fa\0r")
        outcomes = Counter((order.subject, order.outcome) for order in await engine.audit())
        assert outcomes == {("far", "rejected: its lease is over"): 5}
        assert [node.cordoned_at for node in await engine.nodes()] == [None]
