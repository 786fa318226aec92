"""Deadlines: every armed body is told once, in time, and the memory of ended ones is bounded."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.support import PATIENCE_SECONDS

from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.deadlines import SLACK, Deadlines


class Body:
    """As much of an attempt as has a deadline."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.deadline: float | None = None
        self.stop = None


def body(timeout: float | None) -> Attempt:
    """One whose time has not begun."""
    return cast("Attempt", Body(timeout))


class Passed:
    """Whose deadline has passed, in order."""

    def __init__(self) -> None:
        self.attempts: list[Any] = []
        self.event = asyncio.Event()

    def __call__(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self.event.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.attempts) < count:
                self.event.clear()
                await self.event.wait()


class NotedDeadlines(Deadlines):
    """Tells the test instead of the attempt."""

    def __init__(self, passed: Passed) -> None:
        super().__init__(asyncio.get_running_loop(), {}, cast("Completer", None))
        self._passed = passed

    def _expire(self, attempt: Attempt) -> None:
        self._passed(attempt)


async def test_those_that_are_still_armed_are_told_and_no_others() -> None:
    passed = Passed()
    deadlines = NotedDeadlines(passed)
    attempts = [body(timeout) for timeout in (0.05, 0.02, 0.05, None, 0.02, 60)]
    for attempt in attempts:
        deadlines.arm(attempt)
    deadlines.disarm(attempts[0])
    deadlines.disarm(attempts[3])
    await passed.until(3)
    assert passed.attempts == [attempts[1], attempts[4], attempts[2]]
    assert [attempt.deadline is None for attempt in attempts] == [True, True, True, True, True, False]


async def test_one_that_is_armed_again_has_its_whole_time_from_then_on() -> None:
    passed = Passed()
    loop = asyncio.get_running_loop()
    deadlines = NotedDeadlines(passed)
    attempt, other = body(0.1), body(0.1)
    deadlines.arm(attempt)
    deadlines.arm(other)
    await asyncio.sleep(0.06)
    deadlines.arm(attempt)
    again_at = loop.time()
    await passed.until(2)
    assert passed.attempts == [other, attempt]
    assert loop.time() - again_at >= 0.099


async def test_ended_bodies_are_forgotten_long_before_their_deadlines() -> None:
    deadlines = NotedDeadlines(Passed())
    running = body(3600)
    deadlines.arm(running)
    for _ in range(10):
        attempt = body(1800)
        deadlines.arm(attempt)
        deadlines.disarm(attempt)
    assert [list(line) for line in deadlines._queues.values()] == [[running], []]
    deadlines.disarm(running)
    deadlines.disarm(running)
    assert not any(deadlines._queues.values())


async def test_lengths_of_time_that_nobody_has_any_more_are_forgotten_and_their_timers_with_them() -> None:
    deadlines = NotedDeadlines(Passed())
    running = body(3600)
    deadlines.arm(running)
    for number in range(20 * SLACK):
        attempt = body(1800 + number)
        deadlines.arm(attempt)
        deadlines.disarm(attempt)
    assert deadlines._queues.keys() == deadlines._timers.keys()
    assert len(deadlines._queues) <= SLACK + 2
    assert running in deadlines._queues[3600]


async def test_a_moved_deadline_passes_later_and_delays_no_other() -> None:
    passed = Passed()
    loop = asyncio.get_running_loop()
    deadlines = NotedDeadlines(passed)
    moved, other, ended = body(0.02), body(0.02), body(0.02)
    for attempt in (moved, ended, other):
        deadlines.arm(attempt)
    at = moved.deadline
    assert at is not None
    deadlines.extend(moved, 0.05)
    deadlines.extend(moved, 0.05)
    deadlines.extend(ended, 0.05)
    deadlines.disarm(ended)
    await passed.until(2)
    assert passed.attempts == [other, moved]
    assert loop.time() >= at + 0.099
    assert moved.timeout == pytest.approx(0.12)
    assert not deadlines._extended
    assert ended.deadline is None


async def test_one_that_is_armed_again_after_a_move_has_its_longer_time() -> None:
    deadlines = NotedDeadlines(Passed())
    attempt = body(60)
    deadlines.extend(attempt, 40)  # before its function has started
    assert attempt.deadline is None
    deadlines.arm(attempt)
    deadlines.extend(attempt, 100)
    deadlines.arm(attempt)
    assert list(deadlines._queues[200]) == [attempt]
    assert not deadlines._extended
    deadlines.disarm(attempt)


async def test_without_a_timeout_there_is_nothing_to_move() -> None:
    deadlines = NotedDeadlines(Passed())
    attempt = body(None)
    deadlines.arm(attempt)
    deadlines.extend(attempt, 1)
    assert (attempt.timeout, attempt.deadline) == (None, None)
