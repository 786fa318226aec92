"""Ended tasks go from the live tasks to the history. Their rows are locked already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synergon.model.lifecycle import Reason, State
from synergon.stores.postgres.session import Session


async def move_at_once(
    session: Session,
    ids: Sequence[int],
    results: Sequence[str | None],
    state: State,
    reason: Reason | None,
    owned: bool,
) -> list[Any]:
    """One statement takes the rows out and puts them in; their queues and kinds."""
    return await session.rows("end", ids, results, state, reason, owned)


async def move_in_steps(
    session: Session,
    ids: Sequence[int],
    results: Sequence[str | None],
    state: State,
    reason: Reason | None,
    owned: bool,
) -> list[Any]:
    """The same in two, for databases where a statement changes one table."""
    moved = await session.rows("end", ids, results, state, reason, owned)
    await session.run("remove_ended", ids)
    return moved
