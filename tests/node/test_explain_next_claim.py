"""What is said of a claim that begins to reserve capacity, and of urgent kinds that nobody has yielded to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.node.counted_functions import node_of
from tests.node.explained_nodes import Crew, crew_of
from tests.support import PATIENCE_SECONDS, Gate, until, until_state

from synergon import Resources, State, Why
from synergon.node.capacity import preemption


class HeldClaims:
    """Claims of these nodes wait at a gate, so that it stays to be said what comes of the next ones."""

    def __init__(self, crew: Crew) -> None:
        self._gate = Gate()
        crew.stack.callback(self._gate.open)  # no node could stop before
        for engine in crew.engines:
            node_of(engine).scheduler._store = _Held(engine._store, self._gate)

    @classmethod
    async def of(cls, crew: Crew) -> HeldClaims:
        """From now on; those that are under way are over."""
        await until(lambda: not any(node_of(engine).scheduler.is_claiming for engine in crew.engines))
        return cls(crew)

    def go_on(self) -> None:
        self._gate.open()


class _Held:
    """The real store, whose claims wait."""

    def __init__(self, store: Any, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    async def claim(self, request: Any) -> Any:
        await self._gate.hold()
        return await self._store.claim(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(("count", "store"), [(1, "memory"), (3, "memory"), (3, "sqlite"), (3, "postgres")])
async def test_room_that_is_about_to_be_kept_is_said_of_both(
    count: int, store: str, request: pytest.FixtureRequest
) -> None:
    async with crew_of(count, request.getfixturevalue(f"{store}_url"), concurrency=5) as crew:
        held = await crew.running("hold", count, cost=Resources(cpu=3))
        assert len({(await one.status()).node_id for one in held}) == count
        for engine in crew.engines:
            node_of(engine).reservation.patience = 50_000
        claims = await HeldClaims.of(crew)
        big = await crew.enqueue("hold", cost=Resources(cpu=4))
        small = await crew.enqueue("quick", cost=Resources(cpu=1))
        who = "node-0" if count == 1 else "one of node-0, node-1, node-2"
        full = crew.each("hold", r"is full \(cpu 3 of 4 used by task \d+, and it needs 4\)")
        explanation = await crew.said(big, rf"{full}; {who} is about to reserve capacity for it")
        assert [node.will_reserve for node in explanation.nodes] == [True] * count
        assert explanation.reserved_by is None
        explanation = await crew.said(small, crew.each("quick", f"is about to reserve capacity for task {big.id}"))
        assert {(cause.why, cause.subject) for node in explanation.nodes for cause in node.causes} == {
            (Why.WILL_RESERVE, str(big.id))
        }
        claims.go_on()
        explanation = await crew.said(big, rf"{full}; node-\d has reserved capacity for it")
        assert not any(node.will_reserve for node in explanation.nodes)
        crew.gate.open()
        await until_state(big, State.SUCCEEDED)
        await until_state(small, State.SUCCEEDED)


@pytest.mark.parametrize("count", [1, 3])
async def test_the_next_of_a_backlog_of_equals_is_not_said_to_be_kept_room_for(count: int, memory_url: str) -> None:
    async with crew_of(count, memory_url, concurrency=5) as crew:
        await crew.running("hold", count, cost=Resources(cpu=3))
        for engine in crew.engines:
            node_of(engine).reservation.patience = 0
        claims = await HeldClaims.of(crew)
        next_one = await crew.enqueue("hold", cost=Resources(cpu=3))
        small = await crew.enqueue("quick", cost=Resources(cpu=1))
        full = crew.each("hold", r"is full \(cpu 3 of 4 used by task \d+, and it needs 3\)")
        assert not any(node.will_reserve for node in (await crew.said(next_one, full)).nodes)
        names = ", ".join(f"node-{number}" for number in range(count))
        await crew.said(small, rf"ready, due for \d+ s; it can start on {names}")
        claims.go_on()
        await until_state(small, State.SUCCEEDED)
        crew.gate.open()
        await until_state(next_one, State.SUCCEEDED)


@pytest.mark.parametrize("count", [1, 3])
async def test_the_task_that_room_is_kept_for_goes_before_better_ones(count: int, memory_url: str) -> None:
    """Two slots are free on the node that reserves capacity, and two tasks of a higher priority need only a slot."""
    async with crew_of(count, memory_url) as crew:
        for engine in crew.engines:
            node_of(engine).reservation.patience = 50_000
        holding = await crew.running("hold", count, cost=Resources(cpu=3))
        big = await crew.enqueue("quick", cost=Resources(cpu=4))
        await crew.said(big, r".*; node-\d has reserved capacity for it")
        keeper = (await big.status()).reserved_by
        claims = await HeldClaims.of(crew)
        first, second = [await crew.enqueue("quick", priority=9) for _ in range(2)]
        crew.gate.open()
        for handle in holding:
            await until_state(handle, State.SUCCEEDED)

        await crew.said(big, r".*; it can start on .*")  # so the nodes have said what is free now

        async def is_published() -> bool:
            told = [await handle.explain() for handle in (big, first, second)]
            there = [keeper in {node.id for node in each.can_start_on} for each in told]
            return there == [True, True, False]

        await until(is_published, PATIENCE_SECONDS)
        claims.go_on()
        for handle in (big, first, second):
            await until_state(handle, State.SUCCEEDED)


@pytest.mark.parametrize("count", [1, 3])
async def test_an_urgent_kind_that_nobody_has_yielded_to_rests(
    count: int, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "YIELD_SECONDS", 0.05)
    async with crew_of(count, memory_url, sweep=0.05) as crew:
        await crew.running("deaf", 2 * count)
        alarm = await crew.enqueue("alarm")
        clause = (
            r"is full \(2 of 2 slots in use\) and has asked others in vain to yield to `alarm`, "
            r"and asks again in (29|30) s"
        )
        explanation = await crew.said(alarm, crew.each("alarm", clause))
        assert {cause.why for node in explanation.nodes for cause in node.causes} == {Why.SLOTS, Why.UNYIELDING}
        assert all(cause.subject == "alarm" for node in explanation.nodes for cause in node.causes[1:])
        crew.gate.open()
        await until_state(alarm, State.SUCCEEDED)


@pytest.mark.parametrize("count", [1, 3])
async def test_another_urgent_kind_does_not_rest(count: int, memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that run one was asked and would not yield; the other one has not been asked yet."""
    monkeypatch.setattr(preemption, "YIELD_SECONDS", 0.05)
    async with crew_of(count, memory_url, sweep=0.05) as crew:
        await crew.running("deaf", 2 * count)
        alarm = await crew.enqueue("alarm")
        await crew.said(alarm, crew.each("alarm", r".* in vain .*"))
        claims = await HeldClaims.of(crew)
        siren = await crew.enqueue("siren")
        names = ", ".join(f"node-{number}" for number in range(count))
        await crew.said(siren, rf"ready, due for \d+ s; it can start on {names}")
        claims.go_on()
        crew.gate.open()
        await asyncio.gather(until_state(siren, State.SUCCEEDED), until_state(alarm, State.SUCCEEDED))
