"""Moving many tasks: by id with a word about each, or all that match, page by page.

A listing goes from the newest id down, so a task that is moved, runs and ends again meanwhile is not met twice, and one
that is enqueued meanwhile is not met at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from synergon.cli.output import complain, new_progress, plural, say, write_json_lines
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.task_records import TaskQuery
from synergon.model.tasks import Moved
from synergon.stores.base import Store

PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One thing that an operator can do to tasks."""

    done: str
    """`task 7 is ...`"""
    advice: str
    """Said when it was refused."""
    make: Callable[[Engine, Sequence[int]], Awaitable[list[Moved]]]
    possible: frozenset[State] = frozenset()
    """From which states it is legal."""
    usual: frozenset[State] = frozenset()
    """From which states `--all` takes tasks if none is named."""

    def check_states(self, states: Sequence[State]) -> frozenset[State] | None:
        """The states that were named; None: none was."""
        for state in states:
            if state not in self.possible:
                known = ", ".join(sorted(self.possible))
                raise OptionError(f"a task that is {state} cannot be {self.done}; --state takes {known}")
        return frozenset(states) or None


RETRY: Final = Move(
    done="retried",
    advice="only an ended task can be",
    make=lambda engine, ids: engine.store.retry(ids),
    possible=FINAL,
    usual=frozenset({State.FAILED}),
)
DELETE: Final = Move(done="deleted", advice="cancel it first", make=lambda engine, ids: engine.store.delete(ids))


def cancelling(why: str | None) -> Move:
    """A cancel, with its reason; written down as an order for each task."""
    return Move(done="cancelled", advice="it has ended", make=partial(_cancel, why), possible=LIVE, usual=LIVE)


def _cancel(why: str | None, engine: Engine, ids: Sequence[int]) -> Awaitable[list[Moved]]:
    return engine.control.cancel(ids, why)


async def _make(engine: Engine, move: Move, ids: Sequence[int]) -> list[Moved]:
    """Move these, and tell whoever it concerns: workers that run or should run them, and engines that wait for them."""
    moves = await move.make(engine, ids)
    engine.announcer.announce_moves(moves)
    return moves


async def move_some(engine: Engine, move: Move, ids: Sequence[int], *, as_json: bool) -> bool:
    """Move these tasks and say of each what became of it; whether all could be moved."""
    moves = await _make(engine, move, list(dict.fromkeys(ids)))
    if as_json:
        write_json_lines(moves)
        return all(moved.done for moved in moves)
    for moved in moves:
        if moved.done:
            say(f"task {moved.id} {_outcome(move, moved)}")
        else:
            complain(_refusal(move, moved))
    return all(moved.done for moved in moves)


def _outcome(move: Move, moved: Moved) -> str:
    if moved.state is State.RUNNING:  # only a cancel succeeds there
        return "runs; its body is asked to end"
    return f"was {move.done}"


def _refusal(move: Move, moved: Moved) -> str:
    if moved.state is None:
        return f"there is no task {moved.id}: it never existed, was deleted, or its history was pruned"
    if moved.key_holder is not None:
        return f"task {moved.id} cannot be {move.done}: task {moved.key_holder} is live and holds its key"
    return f"task {moved.id} is {moved.state} and cannot be {move.done}; {move.advice}"


async def move_all(engine: Engine, move: Move, query: TaskQuery, *, as_json: bool) -> bool:
    """Move all tasks that match, in pages; whether none had to be left because another holds its key."""
    query = msgspec.structs.replace(query, states=query.states or move.usual, limit=PAGE)
    totals: Counter[str] = Counter()
    with new_progress() as progress:
        bar = progress.add_task(f"{move.done}:", total=await _total(engine.store, query))
        while True:
            page = await engine.store.list_tasks(query)
            moves = await _make(engine, move, [task.id for task in page]) if page.tasks else []
            if as_json:
                write_json_lines(moves)
            totals.update(_class_of(moved) for moved in moves)
            progress.advance(bar, len(moves))
            if page.next is None:
                break
            query = msgspec.structs.replace(query, before=page.next)
    return not totals["held"] if as_json else _sum_up(move, totals)


async def _total(store: Store, query: TaskQuery) -> int | None:
    """How many there are, if counting tells."""
    if query.tag is not None or query.key is not None:
        return None
    return sum(
        number
        for (queue, kind, state), number in (await store.counts()).items()
        if query.kind in (None, kind) and query.queue in (None, queue) and state in (query.states or State)
    )


def _class_of(moved: Moved) -> str:
    if moved.done:
        return "asked" if moved.state is State.RUNNING else "moved"
    return "held" if moved.key_holder is not None else "changed"


def _sum_up(move: Move, totals: Counter[str]) -> bool:
    say(f"{move.done} {plural(totals['moved'], 'task')}")
    if totals["asked"]:
        say(f"asked the bodies of {plural(totals['asked'], 'running task')} to end")
    if totals["changed"]:
        say(f"left {plural(totals['changed'], 'task')} alone that had moved on meanwhile")
    if totals["held"]:
        complain(f"{plural(totals['held'], 'task')} cannot be {move.done}: live tasks hold their keys")
    return not totals["held"]
