"""Plain successes, which are nearly all that ends: one statement moves them, whatever else a transaction has to do."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeVar

from synergon.lifecycle import State
from synergon.records import Settlement, Succeeded, Verdict
from synergon.stores.postgres import settling
from synergon.stores.postgres.claiming import Run
from synergon.stores.postgres.consequences import draw
from synergon.stores.postgres.locking import lock_lines
from synergon.stores.postgres.session import Session

Value = TypeVar("Value")


def are_plain(settlements: Sequence[Settlement]) -> bool:
    """Whether they may be settled so: of what follows only their lines are touched, and none of them is there twice."""
    return all(map(_is_plain, settlements)) and len({entry.id for entry in settlements}) == len(settlements)


def _is_plain(settlement: Settlement) -> bool:
    return (
        isinstance(settlement.outcome, Succeeded)
        and not settlement.outcome.children
        and settlement.progress is None
        and (settlement.limit_key is None or settlement.kind is not None)
        and settlement.group_id is None
        and settlement.is_server_well
    )


async def finish_plain(write: Run, statement: Run, settlements: Sequence[Settlement]) -> list[Verdict]:
    """Settle plain successes; those that are not in a line by a statement that is a transaction by itself."""
    if any(entry.limit_key is not None for entry in settlements):
        settled: dict[int, Verdict] = await write(_succeed_in_lines, settlements)
    else:
        settled = await statement(_succeed, settlements)
        if rest := _rest(settlements, settled):
            settled |= {verdict.id: verdict for verdict in await write(settling.finish, rest)}
    return [settled[entry.id] for entry in settlements]


def _rest(settlements: Sequence[Settlement], settled: dict[int, Verdict]) -> list[Settlement]:
    """Those that need a closer look."""
    return [entry for entry in settlements if entry.id not in settled]


async def _succeed(session: Session, settlements: Sequence[Settlement]) -> dict[int, Verdict]:
    return _verdicts(await _move(session, settlements, counts=True))


async def _succeed_in_lines(session: Session, settlements: Sequence[Settlement]) -> dict[int, Verdict]:
    """They are counted last, because others wait for these rows."""
    await lock_lines(session, {entry.kind for entry in settlements if entry.kind and entry.limit_key is not None})
    rows = await _move(session, settlements, counts=False)
    for queue, kind, limit_key, ids in rows:
        session.touch(kind, limit_key)
        session.count(queue, kind, State.SUCCEEDED, len(ids))
    settled = _verdicts(rows)
    if rest := _rest(settlements, settled):
        settled |= {verdict.id: verdict for verdict in await settling.finish(session, rest)}
    await draw(session)
    return settled


def _verdicts(rows: Sequence[Any]) -> dict[int, Verdict]:
    succeeded = State.SUCCEEDED
    return {task_id: Verdict(task_id, succeeded, (), kind) for _, kind, _, ids in rows for task_id in ids}


async def _move(session: Session, settlements: Sequence[Settlement], *, counts: bool) -> list[Any]:
    in_order = sorted(settlements, key=attrgetter("id"))
    return await session.rows("succeed", *columns(in_order), session.shard, counts)


def columns(settlements: Sequence[Settlement]) -> tuple[list[int], list[int], list[str | None]]:
    """As a statement takes them; they are in the order of ids. What all have is there once: each number has its price,
    and who looks for one among many texts goes through all that are before it."""
    return (
        [entry.id for entry in settlements],
        _once([entry.claim_no for entry in settlements]),
        [_text(result) for result in _once([_result(entry) for entry in settlements])],
    )


def _once(values: list[Value]) -> list[Value]:
    return values[:1] if len(set(values)) == 1 else values


def _result(settlement: Settlement) -> bytes | None:
    assert isinstance(settlement.outcome, Succeeded), "only these are plain"
    return settlement.outcome.result


def _text(result: bytes | None) -> str | None:
    return result.decode() if result is not None else None
