"""A node that is full, for tests of urgent work: some who yield, some who will not, and an alarm that needs room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support import PATIENCE_SECONDS, ThreadGate, until, until_state

from synergon import Context, Engine, Handle, State, TaskRecord
from synergon.node.capacity import preemption


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who are asked to yield have little time for it."""
    monkeypatch.setattr(preemption, "YIELD_SECONDS", 0.1)


class Crowd:
    """Preemptible work that fills a node: each body tells that it is there, and waits until it is let go."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.inside: list[int] = []
        self.preempted: list[int] = []
        self._opened = asyncio.Event()

        @engine.task(preemptible=True, **options)  # type: ignore[untyped-decorator]  # its options are a dict
        async def work(ctx: Context, number: int) -> int:
            self.inside.append(number)
            try:
                await self._opened.wait()
            except asyncio.CancelledError:
                self.preempted.append(number)
                raise
            finally:
                self.inside.remove(number)
            return ctx.attempt

        self.work = work

    async def fill(self, count: int) -> list[Handle[int]]:
        """So many of them, one after the other."""
        handles = []
        for number in range(1, count + 1):
            handles.append(await self.work.enqueue(number))
            await until(lambda number=number: number in self.inside)  # type: ignore[misc]  # bound now
        return handles

    def open(self) -> None:
        """Let all go."""
        self._opened.set()


class Deaf:
    """Preemptible work in a thread, which hears nothing until it is let go. If it asks then, it yields after all."""

    def __init__(self, engine: Engine, *, asks: bool = False, **options: Any) -> None:
        self.inside: list[int] = []
        self.told: list[int] = []
        """Those who have asked and were told to yield."""
        self._gate = ThreadGate()

        @engine.task(preemptible=True, **options)  # type: ignore[untyped-decorator]  # its options are a dict
        def deaf(ctx: Context, number: int) -> str:
            self.inside.append(number)
            self._gate.hold()
            if asks and ctx.cancel_requested:
                self.told.append(number)
            return "done"

        self.work = deaf

    async def begin(self, number: int = 1) -> Handle[str]:
        """One of them."""
        handle: Handle[str] = await self.work.enqueue(number)
        await until(lambda: number in self.inside)
        return handle

    def open(self) -> None:
        """Let all go."""
        self._gate.open()


class Alarm:
    """Urgent work."""

    def __init__(self, engine: Engine, says: str = "rang", **options: Any) -> None:
        self.rang = 0

        @engine.task(urgent=True, **options)  # type: ignore[untyped-decorator]  # its options are a dict
        async def alarm() -> str:
            self.rang += 1
            return says

        self.task = alarm

    async def set_off(self) -> Handle[str]:
        """Enqueue one."""
        handle: Handle[str] = await self.task.enqueue()
        return handle

    async def rings(self) -> None:
        """Return when one has run."""
        assert await (await self.set_off()).result(PATIENCE_SECONDS) == "rang"

    async def waits_for_room(self) -> Handle[str]:
        """One that was claimed, for which somebody has been asked to yield."""
        handle = await self.set_off()
        await until_state(handle, State.RUNNING)
        return handle


async def given_back(handle: Handle[Any]) -> TaskRecord:
    """The record of a task that has gone back to the others, at no cost."""
    record = await until_state(handle, State.READY)
    assert (record.attempts, record.errors) == (0, ())
    return record
