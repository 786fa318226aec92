"""A world whose kinds share limits: a license for two, and lines with one place each."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final

from tests.simulation.auditor import READING, Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.process import Process
from tests.simulation.task_functions import RETRY, Script, perform
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload
from tests.simulation.world import World, at_once

from synergon import Context, Engine
from synergon.call import Call
from synergon.model.claims import ClaimRequest
from synergon.model.lifecycle import State, is_legal

LICENSES: Final = 2
PLACES: Final = 1
ACCOUNTS: Final = ("ada", "bob", "eve")

engine: Final = Engine("memory://", name="limited")
engine.limit("license", LICENSES)


@engine.task(retry=RETRY, timeout=4, limits=["license"])
async def licensed(script: Script, ctx: Context) -> int:
    """At most two at once in the whole world."""
    return await perform(script, ctx)


@engine.task(retry=RETRY, timeout=4, limit_by="{account}", limit=PLACES)
async def lined(script: Script, account: str, ctx: Context) -> int:
    """One at a time for each account."""
    return await perform(script, ctx)


@engine.task(retry=RETRY, timeout=4)
async def polite(script: Script, ctx: Context) -> int:
    """Under no limit."""
    return await perform(script, ctx)


class LimitedWorld(World):
    """The same faults, and limits that hold through all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"limited {seed}"))
        self.kinds = engine.kinds

    def make_auditor(self) -> Auditor:
        return LimitAuditor(self, self.tables)

    def populate(self) -> None:
        at_once(self.store.declare(*engine._registry.declarations()))
        super().populate()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [LimitPatience(self).run(), self.live_through(Chaos(self), LimitWorkload(self))]


class LimitWorkload(Workload):
    """More tasks than there are places for."""

    def _new_call(self) -> Call[Any]:
        kind = self._chances.choice(("licensed", "lined", "lined", "polite"))
        arguments = {"account": self._chances.choice(ACCOUNTS)} if kind == "lined" else {}
        call = engine.call(kind, script=self._script(), **arguments)
        options = self._options()
        return call.with_options(**options) if options else call


class LimitAuditor(Auditor):
    """Limits are never exceeded, and nobody is left waiting with room for it, after any statement."""

    def applied(self, process: Process, name: str, args: tuple[Any, ...], answer: Any, *, is_done: bool) -> None:
        if name in ("pause", "resume"):
            self._look()  # lines have moved
        super().applied(process, name, args, answer, is_done=is_done)
        if name not in READING:
            self._check_lines(name)

    def _look(self) -> dict[int, Seen | None]:
        """What was moved within its line by the end or arrival of another is not the statement's own doing."""
        changed = super()._look()
        return {task_id: old for task_id, old in changed.items() if not self._is_line_move(task_id, old)}

    def _is_line_move(self, task_id: int, old: Seen | None) -> bool:
        new = self.seen.get(task_id)
        if old is None or new is None or {old.state, new.state} != {State.READY, State.WAITING}:
            return False
        return new._replace(state=old.state) == old and self.row(task_id).limit_key is not None

    def _check_move(self, name: str, task_id: int, old: Seen | None, new: Seen | None) -> None:
        if old is not None and new is not None and old.state is not new.state and not is_legal(old.state, new.state):
            self.fail(task_id, f"no task goes from {old.state} to {new.state}")
        super()._check_move(name, task_id, _as_ready(old), _as_ready(new))

    def _first_of(self, eligible: list[int], request: ClaimRequest) -> list[int]:
        """Who has no license hides nobody behind it."""
        free = LICENSES - self.licenses_in_use(self.before_claim)
        left = [task_id for task_id in eligible if self.row(task_id).task.kind != "licensed"]
        can_start = sorted([*left, *self._licensed(eligible)[: max(free, 0)]], key=eligible.index)
        return super()._first_of(can_start, request)

    def _licensed(self, ids: list[int]) -> list[int]:
        return [task_id for task_id in ids if self.row(task_id).task.kind == "licensed"]

    def licenses_in_use(self, seen: dict[int, Seen]) -> int:
        """How many tasks hold one."""
        return len(self._licensed([task_id for task_id, one in seen.items() if one.state is State.RUNNING]))

    def _note_leftovers(self, process: Process, request: ClaimRequest, left: set[int]) -> None:
        super()._note_leftovers(process, request, left - set(self._licensed(sorted(left))))

    def _check_lines(self, name: str) -> None:
        if self.licenses_in_use(self.seen) > LICENSES:
            self._world.fail(f"{name} made more than {LICENSES} tasks run with a license")
        places, waiting = Counter[str](), Counter[str]()
        for row in self._tables.rows.values():
            if row.limit_key is not None and row.state in (State.READY, State.RUNNING):
                places[row.limit_key] += 1
            elif row.limit_key is not None and row.state is State.WAITING and row.task.queue not in self.paused:
                waiting[row.limit_key] += 1
        for account in {*places, *waiting}:
            if places[account] > PLACES:
                self._world.fail(f"{name} gave {places[account]} tasks of {account} a place at once")
            if waiting[account] and not places[account]:
                self._world.fail(f"{name} left tasks of {account} waiting with room for one")


def _as_ready(seen: Seen | None) -> Seen | None:
    """A task that waits in its line is one that would be ready without it."""
    return seen._replace(state=State.READY) if seen is not None and seen.state is State.WAITING else seen


class LimitPatience(Patience):
    """Whoever waits for a license waits for something."""

    def _could_run(self, task_id: int) -> bool:
        auditor = self._world.auditor
        assert isinstance(auditor, LimitAuditor)
        is_free = auditor.licenses_in_use(auditor.seen) < LICENSES
        return super()._could_run(task_id) and (is_free or auditor.row(task_id).task.kind != "licensed")
