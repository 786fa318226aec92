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


def are_plain(settlements: Sequence[FencedOutcome]) -> bool:
    """Whether one statement can end them: nothing follows from them, and none of them is there twice."""
    return all(map(_is_plain, settlements)) and len({entry.id for entry in settlements}) == len(settlements)


def _is_plain(settlement: FencedOutcome) -> bool:
    return (
        isinstance(settlement.outcome, Succeeded)
        and not settlement.outcome.children
        and settlement.progress is None
        and settlement.limit_key is None
        and settlement.group_id is None
        and settlement.is_server_well
    )


async def finish_plain(write: Run, statement: Run, settlements: Sequence[FencedOutcome]) -> list[Verdict]:
    """Finish plain successes by a statement that is a transaction by itself."""
    settled = await statement(_succeed, settlements)
    return await finish_rest(write, settlements, settled)


async def finish_within(session: Session, settlements: Sequence[FencedOutcome]) -> list[Verdict]:
    """Finish inside a transaction that has locked what it needs; plain successes by one statement."""
    if not are_plain(settlements):
        return await finish.finish(session, settlements)

    async def run(work: Run, *arguments: Any) -> Any:
        return await work(session, *arguments)

    return await finish_plain(run, run, settlements)


async def finish_rest(
    write: Run, settlements: Sequence[FencedOutcome], settled: Mapping[int, Verdict]
) -> list[Verdict]:
    """The verdicts of all, when those that need a closer look have had it."""
    rest = [entry for entry in settlements if entry.id not in settled]
    looked_at = {verdict.id: verdict for verdict in await write(finish.finish, rest)} if rest else {}
    return [settled.get(entry.id) or looked_at[entry.id] for entry in settlements]


async def _succeed(session: Session, settlements: Sequence[FencedOutcome]) -> dict[int, Verdict]:
    rows = await session.rows("succeed", *columns(settlements), session.shard)
    succeeded = State.SUCCEEDED
    return {task_id: Verdict(task_id, succeeded, (), kind) for kind, ids in rows for task_id in ids}


def columns(settlements: Sequence[FencedOutcome]) -> tuple[list[int], list[int], list[str | None]]:
    """As a statement takes them: in the order of ids. What all have is there once: each number has its price, and who
    looks for one among many texts goes through all that are before it."""
    in_order = sorted(settlements, key=attrgetter("id"))
    return (
        [entry.id for entry in in_order],
        _once([entry.claim_no for entry in in_order]),
        [_text(result) for result in _once([_result(entry) for entry in in_order])],
    )


def _once(values: list[Value]) -> list[Value]:
    return values[:1] if len(set(values)) == 1 else values


def _result(settlement: FencedOutcome) -> bytes | None:
    assert isinstance(settlement.outcome, Succeeded), "only these are plain"
    return settlement.outcome.result


def _text(result: bytes | None) -> str | None:
    return result.decode() if result is not None else None
