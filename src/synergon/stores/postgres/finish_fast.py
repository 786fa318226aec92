"""Plain successes, which are nearly all that ends: one statement moves them, whatever else a transaction has to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Succeeded, Verdict
from synergon.stores.postgres import finish
from synergon.stores.postgres.claim_fast import Run
from synergon.stores.postgres.session import Session

Value = TypeVar("Value")


def are_plain(fenced_outcomes: Sequence[FencedOutcome]) -> bool:
    """Whether one statement can end them: nothing follows from them, and none of them is there twice."""
    return all(map(_is_plain, fenced_outcomes)) and len({entry.id for entry in fenced_outcomes}) == len(fenced_outcomes)


def _is_plain(fenced: FencedOutcome) -> bool:
    return (
        isinstance(fenced.outcome, Succeeded)
        and not fenced.outcome.children
        and fenced.progress is None
        and fenced.limit_key is None
        and fenced.group_id is None
        and fenced.is_server_well
    )


async def finish_plain(write: Run, statement: Run, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Finish plain successes by a statement that is a transaction by itself."""
    finished = await statement(_succeed, fenced_outcomes)
    return await finish_rest(write, fenced_outcomes, finished)


async def finish_within(session: Session, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Finish inside a transaction that has locked what it needs; plain successes by one statement."""
    if not are_plain(fenced_outcomes):
        return await finish.finish(session, fenced_outcomes)

    async def run(work: Run, *arguments: Any) -> Any:
        return await work(session, *arguments)

    return await finish_plain(run, run, fenced_outcomes)


async def finish_rest(
    write: Run, fenced_outcomes: Sequence[FencedOutcome], finished: Mapping[int, Verdict]
) -> list[Verdict]:
    """The verdicts of all, when those that need a closer look have had it."""
    rest = [entry for entry in fenced_outcomes if entry.id not in finished]
    looked_at = {verdict.id: verdict for verdict in await write(finish.finish, rest)} if rest else {}
    return [finished.get(entry.id) or looked_at[entry.id] for entry in fenced_outcomes]


async def _succeed(session: Session, fenced_outcomes: Sequence[FencedOutcome]) -> dict[int, Verdict]:
    rows = await session.rows("succeed", *columns(fenced_outcomes), session.shard)
    succeeded = State.SUCCEEDED
    return {task_id: Verdict(task_id, succeeded, (), kind) for kind, ids in rows for task_id in ids}


def columns(fenced_outcomes: Sequence[FencedOutcome]) -> tuple[list[int], list[int], list[str | None]]:
    """As a statement takes them: in the order of ids. What all have is there once: each number has its price, and who
    looks for one among many texts goes through all that are before it."""
    in_order = sorted(fenced_outcomes, key=attrgetter("id"))
    return (
        [entry.id for entry in in_order],
        _once([entry.claim_no for entry in in_order]),
        [_text(result) for result in _once([_result(entry) for entry in in_order])],
    )


def _once(values: list[Value]) -> list[Value]:
    return values[:1] if len(set(values)) == 1 else values


def _result(fenced: FencedOutcome) -> bytes | None:
    assert isinstance(fenced.outcome, Succeeded), "only these are plain"
    return fenced.outcome.result


def _text(result: bytes | None) -> str | None:
    return result.decode() if result is not None else None
