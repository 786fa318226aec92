"""A world whose tasks run in batches: three of an account at a time, or fewer after a second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
from tests.simulation.auditor import Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.executions import Execution
from tests.simulation.executor import IN_CHILD, ChildDies
from tests.simulation.limited_world import LimitAuditor
from tests.simulation.process import Process
from tests.simulation.task_functions import RETRY, Script, perform
from tests.simulation.virtual_loop import OWNER
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload
from tests.simulation.world import World, at_once

from synergon import Batch, BatchErrors, Context, Engine, Snooze
from synergon.call import Call
from synergon.model.claims import Claim, ClaimRequest
from synergon.model.lifecycle import State
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables

SIZE: Final = 3
WAIT_SECONDS: Final = 1.0
ACCOUNTS: Final = ("ada", "bob")

engine: Final = Engine("memory://", name="batched")


class Item(msgspec.Struct, frozen=True):
    """One item: its account, and what becomes of it."""

    account: str
    script: Script


@engine.task(retry=RETRY, timeout=4, batch=Batch(size=SIZE, wait=WAIT_SECONDS, by="{account}"))
async def batched(items: list[Item], ctx: Context) -> list[int]:
    """Takes as long as its longest item; a poisonous item takes its process down."""
    process: Any = OWNER.get()
    world: BatchedWorld = process.world
    world.check_list(items)
    with world.executions.of(process, ctx), world.running(process, ctx):
        await asyncio.sleep(max(item.script.seconds for item in items))
        if any(item.script.end == "crash" for item in items):
            if IN_CHILD.get():
                raise ChildDies
            process.die("was taken down by an item of a batch")
            await asyncio.sleep(0)
        errors = {index: error for index, item in enumerate(items) if (error := _error(item, ctx)) is not None}
        if errors:
            raise BatchErrors(errors)
        return [len(item.account) for item in items]


def _error(item: Item, ctx: Context) -> Exception | None:
    if item.script.end == "snooze" and ctx.claim_no < 4:
        return Snooze(0.5)
    return ValueError("it fails") if item.script.end == "fail" or ctx.attempt <= item.script.failures else None


@engine.task(retry=RETRY, timeout=4)
async def polite(script: Script, ctx: Context) -> int:
    """Alone."""
    return await perform(script, ctx)


class BatchedWorld(World):
    """The same faults, and batches that are right through all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"batched {seed}"))
        self.kinds = engine.kinds

    def make_auditor(self) -> Auditor:
        return BatchAuditor(self, self.tables)

    def populate(self) -> None:
        at_once(self.store.declare(*engine._registry.declarations()))
        super().populate()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [Patience(self).run(), self.live_through(Chaos(self), BatchWorkload(self))]

    def check_list(self, items: list[Item]) -> None:
        """What a task function may be given."""
        if not 1 <= len(items) <= SIZE:
            self.fail(f"a task function got {len(items)} items")
        if len({item.account for item in items}) != 1:
            self.fail("a task function got items of two accounts")

    def running(self, process: Process, ctx: Context) -> RunningItems:
        """All tasks of the batch run from here to the end of the block."""
        return RunningItems(self, process, ctx.task_id)


class RunningItems:
    """The members of one batch while its function runs. No other function may have one of them; the leader is watched
    by `Executions`."""

    def __init__(self, world: BatchedWorld, process: Process, leader: int) -> None:
        self._world = world
        rows = [row for row in world.tables.rows.values() if row.batch_id == leader and row.state is State.RUNNING]
        self._members = [Execution(process, row.id, row.claim_no, "batched") for row in rows if row.id != leader]
        if self._members and any(world.auditor.seen[row.id].is_suspect for row in rows):
            world.fail(f"a suspect runs in the batch of task {leader}")

    def __enter__(self) -> None:
        ids = {member.task_id for member in self._members}
        executions = self._world.executions
        for other in executions.members:
            if other.task_id in ids and other.process.is_alive and not executions.is_excused(other):
                self._world.fail(f"two executions at once: {other} runs in another batch")
        self._world.executions.members += self._members

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            self._world.executions.members.remove(member)


class BatchWorkload(Workload):
    """Items of few accounts, and some other tasks."""

    def _new_call(self) -> Call[Any]:
        if self._chances.random() < 0.2:
            call = engine.call("polite", script=self._script())
        else:
            script = self._script()
            call = engine.call("batched", items=Item(self._chances.choice(ACCOUNTS), script))
        options = self._options()
        options.pop("queue", None)
        return call.with_options(**options) if options else call


class BatchAuditor(LimitAuditor):
    """A key queue has one leader, when its batch is complete or due and not before; and a claim takes whole batches."""

    def __init__(self, world: World, tables: Tables) -> None:
        super().__init__(world, tables)
        self.without_key: set[tuple[int, int]] = set()
        """The claims of tasks that were suspects, and have no key of a batch yet."""

    def _check_claim(
        self,
        process: Process,
        args: tuple[ClaimRequest],
        claims: list[Claim],
        changed: dict[int, Seen | None],
        before: dict[int, Seen],
    ) -> None:
        request = args[0]
        if self.is_over(request.node_id):
            self._world.fail(f"{process} claims as node {request.node_id} without a lease")
        executions = [claim for claim in claims if not claim.is_member]
        if len(executions) > request.limit:
            self._world.fail(f"{process} was given {len(executions)} executions for {request.limit} slots")
        if {claim.id for claim in claims} != changed.keys():
            self._world.fail(f"{process} was given other tasks than were claimed")
        for claim in claims:
            self._check_item(claim, claims)
            if claim.kind == "batched" and claim.limit_key is None and not self.seen[claim.id].is_suspect:
                self.without_key.add((claim.id, claim.claim_no))

    def _check_move(self, name: str, task_id: int, old: Seen | None, new: Seen | None) -> None:
        """A claim that only gives a task its key back is no attempt, so its end is not noted."""
        is_keyed_again = (
            name == "finish"
            and old is not None
            and new is not None
            and (task_id, old.claim_no) in self.without_key
            and (new.state, new.attempts) in ((State.READY, old.attempts - 1), (State.WAITING, old.attempts - 1))
        )
        if not is_keyed_again:
            super()._check_move(name, task_id, old, new)

    def _check_item(self, claim: Claim, claims: list[Claim]) -> None:
        batch = [one for one in claims if claim.batch_id is not None and one.batch_id == claim.batch_id]
        if len(batch) > SIZE:
            self.fail(claim.id, f"it is claimed in a batch of {len(batch)}")
        if len({one.limit_key for one in batch}) > 1:
            self.fail(claim.id, "it is claimed with items of another key")
        if self.seen[claim.id].is_suspect and len(batch) > 1:
            self.fail(claim.id, "it is a suspect, and is claimed with others")
        if claim.max_attempts is not None and claim.attempts > claim.max_attempts:
            self.fail(claim.id, f"attempt {claim.attempts} of {claim.max_attempts}")

    def _note_leftovers(self, process: Process, request: ClaimRequest, left: set[int]) -> None:
        """What a claim leaves is judged by the standstill."""

    def _check_lines(self, name: str) -> None:
        queues: dict[str, list[Row]] = {}
        for row in self._tables.rows.values():
            if row.limit_key is not None and row.state in (State.READY, State.WAITING):
                queues.setdefault(row.limit_key, []).append(row)
        for key, rows in queues.items():
            leaders = [row for row in rows if row.state is State.READY]
            waiting = [row for row in rows if row.state is State.WAITING and row.task.queue not in self.paused]
            if len(leaders) > 1:
                self._world.fail(f"{name} made {len(leaders)} tasks of {key} leaders")
            if not leaders and len(waiting) >= SIZE:
                self._world.fail(f"{name} left a complete batch of {key} without a leader")
            if not leaders and waiting and ("batched", key) not in self._tables.batch_alarms:
                self._world.fail(f"{name} left tasks of {key} waiting without an alarm")
