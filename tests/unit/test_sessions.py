"""Sessions are freed when they are dropped."""

from __future__ import annotations

import gc
import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synergon.stores.postgres.profile import STANDARD
from synergon.stores.postgres.session import Session as PostgresSession
from synergon.stores.sqlite.session import Session as SqliteSession
from synergon.stores.sqlite.transaction import IssuedIds


class WatchedSqliteSession(SqliteSession):
    """A session that a weak reference can observe."""

    __slots__ = ("__weakref__",)


class WatchedPostgresSession(PostgresSession):
    """A session that a weak reference can observe."""

    __slots__ = ("__weakref__",)


CONNECTION = sqlite3.connect(":memory:")
SESSIONS: dict[str, Callable[[], Any]] = {
    "sqlite": lambda: WatchedSqliteSession(CONNECTION, IssuedIds(Path("app.db"))),
    "postgres": lambda: WatchedPostgresSession(None, STANDARD, {}, shard=0),
}
PARTS = ("audit", "groups", "key_queues", "limits", "locks", "nodes", "queues", "ready", "servers", "tasks")


@pytest.mark.parametrize("store", SESSIONS)
def test_a_session_is_freed_without_the_garbage_collector(store: str) -> None:
    session = SESSIONS[store]()
    # Not a number of collected objects: threads and finalizers of other tests leave some at any time.
    freed = weakref.ref(session)
    gc.disable()
    try:
        for part in PARTS:
            assert getattr(session, part) is not None
        del session
        assert freed() is None
    finally:
        gc.enable()
