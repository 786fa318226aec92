"""Profiles: what a member of the PostgreSQL family can do. The URL names the profile.

A profile consists of statements, sections of the migrations and settings, and of the functions that differ by more than
statements: the fast path of the claim, and the reader of final events.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from synergon.model.claims import ClaimRequest, Claims
from synergon.stores.base import FinalEvents
from synergon.stores.postgres.claim_fast import FastClaim, claim_at_once, claim_one_kind
from synergon.stores.postgres.distributed.claim import claim_optimistically
from synergon.stores.postgres.distributed.final_events import ClockFinalEvents
from synergon.stores.postgres.final_events import SnapshotFinalEvents
from synergon.stores.postgres.transactions import Transactions
from synergon.stores.statements import statements

_SECTION: Final = re.compile(r"^ *-- \{(?P<profile>\w+)\n(?P<script>.*?)^ *-- \}\n", re.MULTILINE | re.DOTALL)
"""A part of a migration that is only for one profile."""
_STORAGE_PARAMETERS: Final = re.compile(r"^\) WITH \([^()]*\);", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The differences between one member of the PostgreSQL family and the others."""

    name: str
    """The name in `?profile=`, and in the table `meta`."""
    overlay: str | None
    """A folder of statements that replace standard statements by name. None if there is no such folder."""
    skips_locked: bool
    """Whether the database has SKIP LOCKED."""
    has_storage_parameters: bool
    """Whether tables may have storage parameters, such as a fill factor."""
    settings: Mapping[str, str]
    """Session settings of the store's own connections."""
    cleaning: str | None
    """The statement that resets the settings of a connection. None means the driver's own reset."""
    notifies: bool
    """Whether the database has LISTEN and NOTIFY."""
    contention_pauses: tuple[float, ...]
    """The delays in seconds before each repetition of a transaction after a deadlock or serialization failure."""
    asks_one_number: bool
    """Whether a statement that reads several ready groups reads equally many rows of each."""
    claim: Callable[[Transactions, ClaimRequest], Awaitable[FastClaim]]
    claim_one_kind: Callable[[Transactions, ClaimRequest], Awaitable[Claims]] | None
    """The claim of one kind by a shorter statement (`claim_fast.claim_one_kind`). None if there is no such
    statement."""
    changes_several_tables: bool
    """Whether one statement may change several tables."""
    endings: Callable[..., Awaitable[FinalEvents]]

    def statements(self, schema: str) -> Mapping[str, str]:
        """All statements by name."""
        return statements("postgres", schema, self.overlay, skips_locked=self.skips_locked)

    def scripts(self, schema: str) -> list[str]:
        """The migration scripts, in order. The first creates version 1."""
        folder = files("synergon.stores").joinpath("postgres/migrations")
        found = sorted(folder.iterdir(), key=lambda entry: entry.name)
        return [self._adapted(script.read_text(encoding="utf-8")).replace("{schema}", schema) for script in found]

    def _adapted(self, script: str) -> str:
        """The script without sections for other profiles, and without storage parameters unless this profile has
        them."""
        script = _SECTION.sub(lambda section: section["script"] if section["profile"] == self.name else "", script)
        return script if self.has_storage_parameters else _STORAGE_PARAMETERS.sub(");", script)


READ_COMMITTED: Final = {"default_transaction_isolation": "read committed"}
"""For statements that are their own transactions. Some databases have a stricter default, under which more statements
conflict and are repeated."""

STANDARD: Final = Profile(
    name="standard",
    overlay=None,
    skips_locked=True,
    has_storage_parameters=True,
    settings=MappingProxyType(
        {
            # A plan made for an empty table remains in use when the table is large: it must not read the whole table.
            "enable_seqscan": "off",
            # A bitmap is read in the order in which rows are stored, and rows must be locked in the order of their ids.
            "enable_bitmapscan": "off",
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
    claim_one_kind=claim_one_kind,
    changes_several_tables=True,
    endings=SnapshotFinalEvents.open,
)
"""PostgreSQL itself."""

DISTRIBUTED: Final = Profile(
    name="distributed",
    overlay="postgres/distributed",
    skips_locked=False,
    has_storage_parameters=False,
    settings=MappingProxyType(READ_COMMITTED),
    cleaning="RESET ALL",  # the driver's own reset uses advisory locks and UNLISTEN, which not every server has
    notifies=False,
    contention_pauses=(0.005, 0.02, 0.1, 0.3, 1.0),
    asks_one_number=True,
    claim=claim_optimistically,
    claim_one_kind=None,
    changes_several_tables=False,
    endings=ClockFinalEvents.open,
)
"""Distributed databases with PostgreSQL's protocol: YugabyteDB, CockroachDB."""

PROFILES: Final = MappingProxyType({profile.name: profile for profile in (STANDARD, DISTRIBUTED)})
