"""Every body that runs anywhere, and what may never be true of them together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.executor import IN_CHILD

from synergon import Context
from synergon.model.lifecycle import State

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World


@dataclass(slots=True, eq=False)
class Execution:
    """One body while it runs."""

    process: Process
    task_id: int
    claim_no: int
    kind: str
    is_thread: bool = False
    is_excused: bool = False
    """Its process stood still: nothing could have told it in time to stop."""

    def __str__(self) -> str:
        return f"task {self.task_id}, claim {self.claim_no}, in {self.process}"


class Executions:
    """What runs now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.live: list[Execution] = []
        self.members: list[Execution] = []
        """The members of batches whose functions run. Their leaders are in `live`."""
        self.returned: set[tuple[int, int]] = set()
        """The claims whose bodies have returned."""

    @contextmanager
    def of(self, process: Process, ctx: Context) -> Iterator[None]:
        """A body runs, from here to the end of the block."""
        is_thread = self._world.kinds[ctx.kind].policy.runs_in == "thread" and not IN_CHILD.get()
        execution = Execution(process, ctx.task_id, ctx.claim_no, ctx.kind, is_thread)
        self._world.log(f"{process}: the body of task {ctx.task_id} begins, claim {ctx.claim_no}")
        self._check(execution)
        self.live.append(execution)
        process.busy_at = self._world.loop.time()
        try:
            yield
            if process.is_alive and not process.is_stopping:  # which may give it back in the same moment
                self.returned.add((ctx.task_id, ctx.claim_no))
        finally:
            if execution in self.live:
                self.live.remove(execution)
                process.busy_at = self._world.loop.time()
                self._world.log(f"{process}: the body of task {ctx.task_id} ends, claim {ctx.claim_no}")

    def end_all_of(self, process: Process) -> None:
        """The process is dead, and its bodies with it."""
        self.live = [execution for execution in self.live if execution.process is not process]

    def excuse(self, process: Process) -> None:
        """What runs there now could not know that its lease is over."""
        for execution in (*self.live, *self.members):
            if execution.process is process:
                execution.is_excused = True

    def in_use(self, process: Process, kind: str | None = None) -> int:
        """How many bodies run there, of this kind or of all."""
        return sum(e.process is process and kind in (None, e.kind) for e in self.live)

    def threads_in_use(self, process: Process) -> int:
        """How many bodies run there in threads."""
        return sum(e.process is process and e.is_thread for e in self.live)

    def is_excused(self, execution: Execution) -> bool:
        """Whether it may overlap another one. Also the body that would not end while its process does, and all for as
        long as leases last by a clock that was stepped."""
        node = execution.process.node
        has_stepped = self._world.loop.time() < self._world.clock_stepped_at + 2 * execution.process.settings.lease
        return execution.is_excused or has_stepped or (node is not None and node.was_abandoned)

    def _check(self, new: Execution) -> None:
        seen = self._world.auditor.seen[new.task_id]
        # A claim that is stale, because the store's clock was stepped, may be older than the mark of a suspect.
        is_current = (seen.state, seen.claim_no) == (State.RUNNING, new.claim_no)
        if is_current and seen.is_suspect and not IN_CHILD.get():
            self._world.fail(f"{new} is a suspect, and is not isolated")
        for other in self.live:
            if other.task_id == new.task_id and not self.is_excused(other):
                self._world.fail(f"two executions at once: {new} began while {other} ran")
        if self.in_use(new.process) >= new.process.settings.concurrency:
            self._world.fail(f"{new} is one too many for the concurrency of its node")
        if new.is_thread and self.threads_in_use(new.process) >= new.process.settings.threads:
            self._world.fail(f"{new} is one too many for the threads of its node")
        max_running = self._world.kinds[new.kind].policy.max_running
        if max_running is not None and self.in_use(new.process, new.kind) >= max_running:
            self._world.fail(f"{new} is one too many for max_running of {new.kind}")
