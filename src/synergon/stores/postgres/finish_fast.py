"""The fast path for plain successes, which are nearly all outcomes: one statement moves them to the history and counts
them.

Only PostgreSQL has it: there the rule (`rules.finish`) takes five round trips, to begin, lock, move, count and commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TypeVar

from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Succeeded, Verdict
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.transactions import OpenTransaction, Transactions
from synergon.stores.rules.finish import finish

Value = TypeVar("Value")


def are_plain(outcomes: Sequence[FencedOutcome]) -> bool:
    """Whether one statement can apply these outcomes: all are successes without follow-ups, and no two belong to the
    same task."""
    return all(map(_is_plain, outcomes)) and len({entry.id for entry in outcomes}) == len(outcomes)


def _is_plain(entry: FencedOutcome) -> bool:
    return (
        isinstance(entry.outcome, Succeeded)
        and not entry.outcome.children
        and entry.progress is None
        and entry.limit_key is None
        and entry.group_id is None
        and not entry.has_dependents
        and entry.is_server_well
    )


async def finish_plain(transactions: Transactions, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Apply plain successes with one statement, which is its own transaction. Outcomes that the statement did not apply
    go to the rule: their claim is stale, or their row shows that they are not plain."""
    succeeded = await transactions.statement(_succeed, outcomes)
    others = [entry for entry in outcomes if entry.id not in succeeded]
    applied = {verdict.id: verdict for verdict in await transactions.write(finish, others)} if others else {}
    return [succeeded.get(entry.id) or applied[entry.id] for entry in outcomes]


async def finish_within(session: Session, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Apply outcomes inside a transaction that has taken its locks. If all of them are plain, one statement applies
    them."""
    if not are_plain(outcomes):
        return await finish(session, outcomes)
    return await finish_plain(OpenTransaction(session), outcomes)


async def _succeed(session: Session, outcomes: Sequence[FencedOutcome]) -> dict[int, Verdict]:
    rows = await session.rows("succeed", *columns(outcomes), session.shard)
    succeeded = State.SUCCEEDED
    return {task_id: Verdict(task_id, succeeded, (), kind) for kind, ids in rows for task_id in ids}


def columns(outcomes: Sequence[FencedOutcome]) -> tuple[list[int], list[int], list[str | None]]:
    """The parameters of the statement `succeed`: ids in ascending order, claim numbers and results. A value that all
    outcomes share is sent once, because large arrays are slow to send and to index."""
    in_order = sorted(outcomes, key=attrgetter("id"))
    return (
        [entry.id for entry in in_order],
        _once([entry.claim_no for entry in in_order]),
        [_text(result) for result in _once([_result(entry) for entry in in_order])],
    )


def _once(values: list[Value]) -> list[Value]:
    return values[:1] if len(set(values)) == 1 else values


def _result(entry: FencedOutcome) -> bytes | None:
    assert isinstance(entry.outcome, Succeeded), "only these are plain"
    return entry.outcome.result


def _text(result: bytes | None) -> str | None:
    return result.decode() if result is not None else None
