"""An engine belongs to one event loop, and says so."""

from __future__ import annotations

import asyncio
import threading

import pytest

from synergon import Engine, NotConnected


def test_a_synchronous_program_may_run_a_worker_beside_itself(sqlite_url: str) -> None:
    engine = Engine(sqlite_url, sweep=60)

    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    with engine:
        worker = threading.Thread(target=engine.run_sync, daemon=True)
        worker.start()
        assert double.enqueue_sync(21).result_sync(timeout=10) == 42
    worker.join(10)
    assert not worker.is_alive()


def test_connecting_on_a_second_loop_is_refused(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)
    with engine, pytest.raises(NotConnected, match="another event loop"):
        asyncio.run(engine.connect())
