"""Sessions are freed when they are dropped."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synergon.stores.postgres.profile import STANDARD
from synergon.stores.postgres.session import Session as PostgresSession
from synergon.stores.sqlite.issued_ids import IssuedIds
from synergon.stores.sqlite.session import Session as SqliteSession

CONNECTION = sqlite3.connect(":memory:")
SESSIONS: dict[str, Callable[[], Any]] = {
    "sqlite": lambda: SqliteSession(CONNECTION, IssuedIds(Path("app.db"))),
    "postgres": lambda: PostgresSession(None, STANDARD, {}, shard=0),
}
PARTS = ("audit", "groups", "key_queues", "limits", "locks", "nodes", "queues", "ready", "servers", "tasks")


@pytest.mark.parametrize("store", SESSIONS)
def test_a_session_is_freed_without_the_garbage_collector(store: str) -> None:
    session = SESSIONS[store]()
    gc.collect()
    gc.disable()
    try:
        for part in PARTS:
            assert getattr(session, part) is not None
        del session
        assert gc.collect() == 0
    finally:
        gc.enable()
