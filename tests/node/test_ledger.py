"""The one ledger: whatever starts, ends, fails, is cancelled or handed back, what is available stays between nothing
and the total."""

from __future__ import annotations

import asyncio
import random

from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, until

from synergon import Context, Engine, Resources, Retry, Snooze
from synergon.node.claims.ledger import Ledger, Usage
from synergon.node.node import Node

TOTALS = Resources(cpu=4, ram=1000, gpu=1, custom={"license": 3})


class WatchedLedger(Ledger):
    """Looks at what is available whenever something is taken or given back."""

    looks = 0
    wrong: tuple[str, ...] = ()

    def take(self, *arguments: object, **named: object) -> None:
        Usage.take(self, *arguments, **named)  # type: ignore[arg-type]  # they fit
        self.look()

    def release(self, *arguments: object, **named: object) -> None:
        Usage.release(self, *arguments, **named)  # type: ignore[arg-type]  # they fit
        self.look()

    def look(self) -> None:
        self.looks += 1
        for name, available in self.available.items():
            if not 0 <= available <= self.totals[name]:
                self.wrong += (f"{name}: {available}",)


def watch(engine: Engine) -> None:
    """Let the node of this engine keep a watched ledger."""

    def make(*arguments: object, **named: object) -> Node:
        node = Node(*arguments, **named)  # type: ignore[arg-type]  # they fit
        node.ledger.__class__ = WatchedLedger
        return node

    engine._ports.make_node = make


def random_cost(chance: random.Random) -> Resources:
    return Resources(
        cpu=chance.choice([0, 0.1, 0.25, 1, 2, 4]),
        ram=chance.choice([0, 1, 333, 1000]),
        gpu=chance.choice([0, 0, 1 / 3, 0.5, 1]),
        custom={"license": chance.choice([0, 0, 1, 3])},
    )


async def test_whatever_happens_available_is_between_nothing_and_the_total(new_engine: NewEngine, url: str) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    engine = new_engine(url, resources=TOTALS, concurrency=12)
    watch(engine)
    fates = ["return", "fail", "retry", "snooze", "linger", "wait"]

    @engine.task(retry=Retry(attempts=2, first=0), cost=Resources(cpu=1, gpu=0.25), timeout=20, preemptible=True)
    async def live(ctx: Context, fate: str) -> None:
        if fate == "linger":
            await asyncio.sleep(0.002)
        elif fate == "wait":
            await asyncio.sleep(60)
        elif fate == "snooze" and not ctx.meta:
            raise Snooze(0) if chance.random() < 0.5 else ValueError("instead of a pause")
        elif fate in ("fail", "retry"):
            raise ValueError(fate)

    @engine.task(urgent=True, cost=Resources(cpu=1))
    async def at_once(fate: str) -> None:
        if fate == "fail":
            raise ValueError(fate)

    @engine.task(cost=Resources(custom={"license": 1}))
    def in_a_thread(fate: str) -> None:
        if fate == "fail":
            raise ValueError(fate)

    async with engine:
        calls = []
        for _ in range(150):
            kind = chance.choices(["live", "in_a_thread", "at_once"], [7, 2, 1])[0]
            call = engine.kinds[kind].call(chance.choice(fates))
            calls.append(call.with_options(cost=random_cost(chance)) if chance.random() < 0.6 else call)
        async with engine.worker():
            node = engine._node
            assert node is not None
            handles = await engine.enqueue(calls)
            ledger = node.ledger
            assert isinstance(ledger, WatchedLedger)
            await until(lambda: ledger.in_use > 0)
            for _ in range(2):  # what waits for ever is cancelled, and the node stops and starts in between
                await asyncio.sleep(0.02)
                for handle in chance.sample(handles, 20):
                    await handle.cancel()
            await engine._stop_node(grace=0)
            assert node.state().free == node.state().totals
            assert node.state().holders == {}
            assert ledger.wrong == ()
        async with engine.worker():
            again = engine._node
            assert again is not None
            waiting = [handle for handle, call in zip(handles, calls, strict=True) if b"wait" in call.payload]
            for handle in waiting:
                await handle.cancel()
            for handle in handles:
                await engine.wait(handle.id, timeout=PATIENCE_SECONDS)
            await until(lambda: not again.runner.running)
            assert again.state().free == again.state().totals
            later = again.ledger
            assert isinstance(later, WatchedLedger)
            assert later.looks > 0
            assert later.wrong == ()
