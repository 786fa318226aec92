"""A world with one kind whose tenants take turns."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import replace
from tests.simulation.auditor import READING, Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.process import Process
from tests.simulation.task_functions import RETRY, Script, perform
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload
from tests.simulation.world import World

from synergon import Context, Engine
from synergon.call import Call
from synergon.model.lifecycle import FINAL, State
from synergon.options.tenants import STEP
from synergon.stores.memory.row import Row

WEIGHTS: Final = {"ada": 1.0, "bob": 2.0, "eve": 0.5}
NEW_TURNS: Final = {"insert", "retry", "reschedule", "set_priority"}
"""The statements that may change the turn of a task that has one."""

engine: Final = Engine("memory://", name="fair")


@engine.task(retry=RETRY, timeout=4, fair_by="{tenant}", weight=WEIGHTS)
async def shared(script: Script, tenant: str, ctx: Context) -> int:
    """The tenants take turns."""
    return await perform(script, ctx)


class FairWorld(World):
    """The same faults, and turns that hold through all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"fair {seed}"))
        self.kinds = engine.kinds

    def make_auditor(self) -> Auditor:
        return FairAuditor(self, self.tables)

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [Patience(self).run(), self.live_through(Chaos(self), FairWorkload(self))]


class FairWorkload(Workload):
    """One tenant has far more tasks than the others."""

    def _new_call(self) -> Call[Any]:
        tenant = self._chances.choice(("ada", "ada", "ada", "ada", "bob", "eve"))
        script = replace(self._script(), children=0)  # children are of a kind without tenants
        call = engine.call("shared", script=script, tenant=tenant)
        options = self._options()
        return call.with_options(**options) if options else call


class FairAuditor(Auditor):
    """After any statement, every ready task has a turn, a task that runs again has the turn that it had, and the turns
    of a tenant are a step apart. Claims follow the turns."""

    def __init__(self, world: World, tables: Any) -> None:
        super().__init__(world, tables)
        self._turns: dict[int, int] = {}

    def applied(self, process: Process, name: str, args: tuple[Any, ...], answer: Any, *, is_done: bool) -> None:
        super().applied(process, name, args, answer, is_done=is_done)
        if name not in READING:
            self._check_turns(name)

    def _check_turns(self, name: str) -> None:
        live = [row for row in self._tables.rows.values() if row.state not in FINAL]
        for row in live:
            if row.state is State.READY and not row.fair_tag:
                self.fail(row.id, f"{name} made it ready without a turn")
            had = self._turns.get(row.id)
            if had and row.fair_tag != had and name not in NEW_TURNS:
                self.fail(row.id, f"{name} changed its turn from {had} to {row.fair_tag}")
        self._turns = {row.id: row.fair_tag for row in live}
        by_tenant: dict[tuple[str, int], list[Row]] = {}
        for row in live:
            if row.fair_tag:
                by_tenant.setdefault((row.task.fair_key or "", row.priority), []).append(row)
        for (tenant, _), rows in by_tenant.items():
            self._check_steps(name, tenant, sorted(row.fair_tag for row in rows))

    def _check_steps(self, name: str, tenant: str, tags: list[int]) -> None:
        step = round(STEP / WEIGHTS[tenant])
        if any(later - earlier < step for earlier, later in pairwise(tags)):
            self._world.fail(f"{name} gave {tenant} turns that are less than a step apart: {tags}")

    def _in_order(self, before: dict[int, Seen]) -> list[int]:
        def position(task_id: int) -> tuple[int, bool, int, int]:
            return -before[task_id].priority, before[task_id].is_suspect, self.row(task_id).fair_tag, task_id

        return sorted(super()._in_order(before), key=position)
