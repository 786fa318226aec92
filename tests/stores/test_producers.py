"""Producers that insert side by side: every awaited insert returns, and every task is stored once."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from tests.stores.actions import KIND, PATIENCE_SECONDS, add, listed

from synergon.stores.base import Store

LEAST_TASKS: Final = 400


@pytest.mark.parametrize("producers", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("fields", [{}, {"limit_key": "a"}], ids=["plain", "in key queues"])
async def test_every_insert_returns_and_every_task_is_stored_once(
    store: Store, producers: int, fields: dict[str, str]
) -> None:
    inserted: list[int] = []
    tasks_each = max(LEAST_TASKS // producers, 10)

    async def produce() -> None:
        for _ in range(tasks_each):
            async with asyncio.timeout(PATIENCE_SECONDS):
                inserted.append(await add(store, **fields))

    await asyncio.gather(*(produce() for _ in range(producers)))
    assert len(inserted) == producers * tasks_each
    assert sorted(inserted) == sorted(await listed(store, kinds=(KIND,)))
