"""The health of servers: one that fails again and again rests, and is tried with one task at a time afterwards.

A success of a server that was well is no news: nothing is locked and written for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from synergon.model.outcomes import FencedOutcome
from synergon.model.record import from_datetime, to_datetime
from synergon.stores.postgres.key_queues import LAST_MOMENT
from synergon.stores.postgres.session import Session

ServerName = tuple[str, str]
"""Provider and address."""


class Condition(NamedTuple):
    """What the row of a server says."""

    failures: int = 0
    backoffs: int = 0
    backs_off_until: datetime | None = None


class Health:
    """How the attempts of one batch went, for the servers of which that is news. Servers that left are forgotten."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = {(row["provider"], row["address"]): row for row in rows}
        self._before = {
            server: Condition(row["failures"], row["backoffs"], row["backs_off_until"])
            for server, row in self._rows.items()
        }
        self._now = dict(self._before)

    @classmethod
    async def lock(cls, session: Session, fenced_outcomes: Sequence[FencedOutcome]) -> Health:
        """Lock the rows of servers that have something to be written."""
        servers = {entry.server for entry in fenced_outcomes if entry.server is not None}
        if not servers:
            return cls(())
        failed = {entry.server for entry in fenced_outcomes if entry.server is not None and not entry.is_server_well}
        news = failed | {(row["provider"], row["address"]) for row in await session.rows("ailing", *_columns(servers))}
        return cls(await session.rows("lock_health", *_columns(news)) if news else ())

    def note(self, fenced: FencedOutcome) -> None:
        """Count how one attempt went."""
        server = fenced.server
        if server is not None and server in self._rows:
            condition = self._now[server]
            self._now[server] = Condition() if fenced.is_server_well else _failed(condition, self._rows[server])

    async def write(self, session: Session) -> None:
        """Write what has changed."""
        for server, condition in self._now.items():
            if condition != self._before[server]:
                await session.run("set_health", *server, *condition)
                session.locked_permits = None  # the claim of an exchange reads the servers again


def _columns(servers: set[ServerName]) -> tuple[list[str], list[str]]:
    pairs = sorted(servers)
    return [provider for provider, _ in pairs], [address for _, address in pairs]


def _failed(condition: Condition, row: Any) -> Condition:
    failures, backoffs, backs_off_until = condition
    if backs_off_until is not None and backs_off_until > row["now"]:
        return condition  # it was running when the rest began, which it must not lengthen
    failures += 1
    if row["backoff_after"] is None or failures < row["backoff_after"]:
        return Condition(failures, backoffs, backs_off_until)
    return Condition(failures, backoffs + 1, _end_of_backoff(backoffs, row))


def _end_of_backoff(backoffs: int, row: Any) -> datetime:
    """Twice as long after each rest, up to the cap, for any number of them."""
    length = min(row["backoff_first"] * 2 ** min(backoffs, 62), row["backoff_cap"])
    return to_datetime(min(from_datetime(row["now"]) + length, LAST_MOMENT))
