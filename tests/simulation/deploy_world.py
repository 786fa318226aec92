"""A world in the middle of a deploy: some processes have older code, which cannot read all that newer ones enqueue."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import structs
from tests.simulation.auditor import Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.process import Process
from tests.simulation.task_functions import RETRY, Script, perform
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload
from tests.simulation.world import World

from synergon import Context, Engine
from synergon.call import Call
from synergon.model.claims import ClaimRequest
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Refused
from synergon.model.tasks import Insertion, Moved, NewTask
from synergon.policies import REFUSAL_LIMIT
from synergon.task import AnyTask

newer: Final = Engine("memory://", name="newer")
older: Final = Engine("memory://", name="older")


@newer.task(retry=RETRY, timeout=4)
async def evolving(script: Script, ctx: Context, *, loud: bool = False) -> int:
    """Has got an argument more."""
    return await perform(script, ctx)


@older.task(name="evolving", retry=RETRY, timeout=4)
async def evolving_before(script: Script, ctx: Context) -> int:
    """As it was."""
    return await perform(script, ctx)


for its_engine in (newer, older):

    @its_engine.task(retry=RETRY, timeout=4)
    async def polite(script: Script, ctx: Context) -> int:
        """Has not changed."""
        return await perform(script, ctx)


class DeployedProcess(Process):
    """Runs one release of the code."""

    def __init__(self, *args: Any, is_older: bool) -> None:
        self.is_older = is_older
        super().__init__(*args)

    @property
    def kinds(self) -> Mapping[str, AnyTask]:
        return older.kinds if self.is_older else newer.kinds


class DeployWorld(World):
    """The same faults, in the middle of a deploy."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"deploy {seed}"))
        self.kinds = newer.kinds

    def make_auditor(self) -> Auditor:
        return DeployAuditor(self, self.tables)

    def start_process(self) -> None:
        pid, chances = self.next_pid(), self.chances
        concurrency, is_older = chances.choice((1, 2, 3, 4)), chances.random() < 0.6
        settings = replace(newer.settings, name=f"node-{pid}", concurrency=concurrency, child_processes=4, lease=6.0)
        chances_there = random.Random(chances.random())
        self.processes.append(DeployedProcess(self, pid, settings, chances_there, is_older=is_older))

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [DeployPatience(self).run(), self.live_through(Chaos(self), DeployWorkload(self))]


class DeployWorkload(Workload):
    """Producers of both releases."""

    def _new_call(self) -> Call[Any]:
        kind = self._chances.choice(("evolving", "evolving", "polite"))
        is_loud = kind == "evolving" and self._chances.random() < 0.5
        call = newer.call(kind, script=self._script(), **({"loud": True} if is_loud else {}))
        options = self._options()
        return call.with_options(**options) if options else call

    def _script(self) -> Script:
        """Without children, which would be of another engine."""
        return structs.replace(super()._script(), children=0)


class DeployAuditor(Auditor):
    """Remembers who has refused what: only older code refuses, and only what it cannot read; no node is given a task
    that it has refused while another one might run it; and the last refusal ends it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._refused: dict[int, set[str]] = {}

    def is_left_to_others(self, task_id: int, node_id: str | None) -> bool:
        """Whether the node has refused the task, and another might run it."""
        refused_by = self._refused.get(task_id, set())
        return node_id in refused_by and not self._live() <= refused_by

    def _live(self) -> set[str]:
        return {node_id for node_id in self._tables.nodes if not self.is_over(node_id)}

    def _check_insert(self, process: Process, args: tuple[Sequence[NewTask]], answer: list[Insertion], *_: Any) -> None:
        for task, insertion in zip(args[0], answer, strict=True):
            if not insertion.created and task.on_conflict == "replace":
                self._refused.pop(insertion.id, None)

    def _check_retry(self, process: Process, args: Any, moves: list[Moved], *_: Any) -> None:
        for moved in moves:
            if moved.done:
                self._refused.pop(moved.id, None)

    def _first_of(self, eligible: list[int], request: ClaimRequest) -> list[int]:
        return super()._first_of(
            [task_id for task_id in eligible if not self.is_left_to_others(task_id, request.node_id)], request
        )

    def _note_leftovers(self, process: Process, request: ClaimRequest, left: set[int]) -> None:
        refused = {task_id for task_id in left if request.node_id in self._refused.get(task_id, ())}
        super()._note_leftovers(process, request, left - refused)

    def _check_outcome(self, fenced: FencedOutcome, old: Seen) -> int:
        if isinstance(fenced.outcome, Refused):
            self._check_refusal(fenced.id, old)
        return super()._check_outcome(fenced, old)

    def _check_refusal(self, task_id: int, old: Seen) -> None:
        assert old.node_id is not None
        owner, new = self.owners[old.node_id], self.seen[task_id]
        assert isinstance(owner, DeployedProcess)
        if not owner.is_older or b'"loud"' not in self.row(task_id).task.payload:
            self.fail(task_id, f"{owner} refused it, and it fits")
        refused_by = self._refused.setdefault(task_id, set()) | {old.node_id}
        has_hope = not self._live() <= refused_by and len(refused_by) < REFUSAL_LIMIT
        if new.state is not State.CANCELLED and (new.state is State.FAILED) == has_hope:
            self.fail(task_id, f"{len(refused_by)} nodes have refused it, and it is {new.state}")
        self._refused[task_id] = refused_by


class DeployPatience(Patience):
    """Who has refused a task is not the one to run it."""

    _asked: Process | None = None

    def _look_for_leftovers(self, process: Process) -> None:
        self._asked = process
        super()._look_for_leftovers(process)

    def _is_waiting(self, kind: str, since: float) -> bool:
        auditor, asked = self._world.auditor, self._asked
        assert isinstance(auditor, DeployAuditor)
        assert asked is not None
        return any(
            seen.state is State.READY and auditor.moved_at[task_id] < since and auditor.is_open(row)
            for task_id, seen in auditor.seen.items()
            if (row := auditor.row(task_id)).task.kind == kind and not auditor.is_left_to_others(task_id, asked.row_id)
        )

    def _who_is_free(self, task_id: int) -> Process | None:
        auditor = self._world.auditor
        assert isinstance(auditor, DeployAuditor)
        row = auditor.row(task_id)
        if not auditor.is_open(row):
            return None
        free = [
            process
            for process in self._world.processes
            if process.is_healthy
            and self._has_room(process, row.task.kind)
            and not auditor.is_left_to_others(task_id, process.row_id)
        ]
        return min(free, key=lambda process: process.troubled_until, default=None)
