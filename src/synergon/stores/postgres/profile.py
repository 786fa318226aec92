"""Profiles: what a member of the PostgreSQL family can do. The URL decides it once.

A profile consists of statements, migrations and settings, and of the functions that differ by more than statements: the
fast path of the claim, and the reader of final events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from synergon.model.claims import ClaimRequest, Claims
from synergon.stores.base import FinalEvents
from synergon.stores.postgres.claim_fast import FastClaim, Run, claim_at_once, claim_by_short_statement
from synergon.stores.postgres.distributed.claim import claim_optimistically
from synergon.stores.postgres.distributed.final_events import ClockFinalEvents
from synergon.stores.postgres.final_events import SnapshotFinalEvents
from synergon.stores.statements import statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One member of the PostgreSQL family."""

    name: str
    """The name in `?profile=`, and in the schema's `meta`."""
    overlay: str | None
    """A folder of statements that replace those with their name; None if there are none."""
    migrations: str
    settings: Mapping[str, str]
    """Session settings of the store's own connections."""
    cleaning: str | None
    """The statement that resets the settings of a connection; None for the driver's own reset."""
    notifies: bool
    """The database has LISTEN and NOTIFY."""
    contention_pauses: tuple[float, ...]
    """The delays in seconds before a transaction is repeated after a deadlock or serialization failure."""
    asks_one_number: bool
    """A statement that reads several ready groups reads one number of rows of each."""
    claim: Callable[[Run, ClaimRequest], Awaitable[FastClaim]]
    claim_by_short_statement: Callable[[Run, ClaimRequest], Awaitable[Claims]] | None
    """The shorter claim, for one kind, or while more tasks are ready than requested; None if there is none."""
    changes_several_tables: bool
    """One statement may change several tables."""
    endings: Callable[..., Awaitable[FinalEvents]]

    def statements(self, schema: str) -> Mapping[str, str]:
        """All statements by name."""
        return statements("postgres", schema, overlay=self.overlay)

    def scripts(self, schema: str) -> list[str]:
        """The migration scripts, in order. The first makes version 1."""
        folder = files("synergon.stores").joinpath(self.migrations)
        found = sorted(folder.iterdir(), key=lambda entry: entry.name)
        return [script.read_text(encoding="utf-8").replace("{schema}", schema) for script in found]


READ_COMMITTED: Final = {"default_transaction_isolation": "read committed"}
"""For statements that are their own transactions. It is not the default of every database: without it more of them
conflict and are repeated."""

STANDARD: Final = Profile(
    name="standard",
    overlay=None,
    migrations="postgres/migrations",
    settings=MappingProxyType(
        {
            # A plan made for an empty table remains in use when the table is large: it must not read the whole table.
            "enable_seqscan": "off",
            # JIT compilation would take longer than our statements.
            "jit": "off",
            # Planning takes several times as long as running our statements. They are written so that one generic plan
            # is right for all parameters.
            "plan_cache_mode": "force_generic_plan",
            **READ_COMMITTED,
        }
    ),
    cleaning=None,
    notifies=True,
    contention_pauses=(0.005, 0.02, 0.1),
    asks_one_number=False,
    claim=claim_at_once,
    claim_by_short_statement=claim_by_short_statement,
    changes_several_tables=True,
    endings=SnapshotFinalEvents.open,
)
"""PostgreSQL itself."""

DISTRIBUTED: Final = Profile(
    name="distributed",
    overlay="postgres/distributed",
    migrations="postgres/distributed/migrations",
    settings=MappingProxyType(READ_COMMITTED),
    cleaning="RESET ALL",  # the driver's own reset uses advisory locks and UNLISTEN, which not every server has
    notifies=False,
    contention_pauses=(0.005, 0.02, 0.1, 0.3, 1.0),
    asks_one_number=True,
    claim=claim_optimistically,
    claim_by_short_statement=None,
    changes_several_tables=False,
    endings=ClockFinalEvents.open,
)
"""Distributed databases with PostgreSQL's protocol: YugabyteDB, CockroachDB."""

PROFILES: Final = MappingProxyType({profile.name: profile for profile in (STANDARD, DISTRIBUTED)})
