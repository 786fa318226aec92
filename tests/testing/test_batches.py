"""Batches under the test's clock: complete ones run at once, others when their time has come."""

from __future__ import annotations

import pytest
from tests.testing.conftest import MIDNIGHT

from synergon import Batch, BatchErrors, Engine, State, testing

engine = Engine("memory://", name="batches-under-test")
seen: list[list[int]] = []


@engine.task(batch=Batch(size=3, wait="10m"))
async def post(numbers: list[int]) -> list[int]:
    seen.append(numbers)
    wrong = {index: ValueError(f"{number} is wrong") for index, number in enumerate(numbers) if number < 0}
    if wrong:
        raise BatchErrors(wrong)
    return numbers


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


async def test_a_complete_batch_runs_and_the_rest_waits_for_the_clock() -> None:
    async with testing.memory(engine, now=MIDNIGHT) as tester:
        handles = await post.enqueue_many([(number,) for number in range(4)])
        records = await tester.drain()
        assert seen == [[0, 1, 2]]
        assert [record.id for record in records] == [handle.id for handle in handles[:3]]
        assert (await handles[3].status()).state is State.WAITING
        tester.clock.advance("10m")
        await tester.drain()
        assert seen == [[0, 1, 2], [3]]


async def test_the_error_of_one_item_is_raised() -> None:
    async with testing.memory(engine, now=MIDNIGHT) as tester:
        handles = await post.enqueue_many([(1,), (-2,), (3,)])
        with pytest.raises(ValueError, match="-2 is wrong") as caught:
            await tester.drain(raise_errors=True)
        assert f"raised by task {handles[1].id} (post)" in caught.value.__notes__[0]
        assert (await handles[0].status()).state is State.SUCCEEDED
