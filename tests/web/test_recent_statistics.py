"""Statistics that the pages share: read once for all viewers, again when they are old, and never shown too old."""

from __future__ import annotations

import asyncio

import pytest

from synergon import Engine
from synergon.errors import StoreUnavailable
from synergon.model.task_statistics import Statistics
from synergon.web.dashboard import recent_statistics
from synergon.web.dashboard.recent_statistics import RecentStatistics


class Source(Engine):
    """An engine whose statistics the test hands over."""

    def __init__(self) -> None:
        super().__init__("memory://")
        self.reads: list[asyncio.Future[list[Statistics]]] = []

    async def statistics(self, **_: object) -> list[Statistics]:
        self.reads.append(asyncio.get_running_loop().create_future())
        return await self.reads[-1]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only entry."""
    now = [1000.0]
    monkeypatch.setattr(recent_statistics, "monotonic", lambda: now[0])
    return now


async def test_viewers_share_a_read_and_see_the_last_figures_while_they_are_read_again(seconds: list[float]) -> None:
    source, recent = Source(), RecentStatistics()
    first = [asyncio.create_task(recent.read(source, "1h")) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(source.reads) == 1
    old: list[Statistics] = []
    source.reads[0].set_result(old)
    assert all(found is old for found in await asyncio.gather(*first))
    seconds[0] += 9
    assert await recent.read(source, "1h") is old
    assert len(source.reads) == 1, "they are fresh"
    seconds[0] += 2
    assert await recent.read(source, "1h") is old
    await asyncio.sleep(0)
    assert len(source.reads) == 2, "they are read beside the page"
    new: list[Statistics] = []
    source.reads[1].set_result(new)
    await asyncio.sleep(0)
    assert await recent.read(source, "1h") is new
    seconds[0] += 31
    waiting = asyncio.create_task(recent.read(source, "1h"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "figures of this age are not shown"
    source.reads[2].set_result(old)
    assert await waiting is old
    await recent.close()


async def test_a_read_that_fails_is_reported_to_a_page_that_waits_for_it_and_is_repeated(seconds: list[float]) -> None:
    source, recent = Source(), RecentStatistics()
    for error in (StoreUnavailable("away"), None):
        waiting = asyncio.create_task(recent.read(source, "1d"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if error is None:
            source.reads[-1].set_result([])
            assert await waiting == []
        else:
            source.reads[-1].set_exception(error)
            with pytest.raises(StoreUnavailable):
                await waiting
    seconds[0] += 100
    assert await recent.read(source, "1d") == [], "a day allows for more"
    await asyncio.sleep(0)
    assert len(source.reads) == 3
    await recent.close()
    assert source.reads[2].cancelled()
