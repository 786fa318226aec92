"""One PostgreSQL as it usually is, and those who may do less there than its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from tests.postgres_server import IS_OURS, SCHEMA, TABLES, administer, store_url, url_with

from synergon.stores.postgres import PostgresStore

WORKER_GRANTS = (
    f"USAGE ON SCHEMA {SCHEMA}",
    f"SELECT ON {SCHEMA}.meta",
    f"SELECT, UPDATE ON {SCHEMA}.lock_row",
    f"SELECT, INSERT, UPDATE, DELETE ON {', '.join(f'{SCHEMA}.{table}' for table in TABLES)}",
)
PRODUCER_GRANTS = (
    f"USAGE ON SCHEMA {SCHEMA}",
    f"SELECT ON {SCHEMA}.meta",
    f"SELECT, UPDATE ON {SCHEMA}.lock_row",
    f"SELECT, INSERT, UPDATE ON {SCHEMA}.task, {SCHEMA}.task_limit, {SCHEMA}.task_group",
    f"SELECT, INSERT, UPDATE, DELETE ON {SCHEMA}.provider, {SCHEMA}.server",
    f"SELECT ON {SCHEMA}.rate",
    f"SELECT, INSERT ON {SCHEMA}.queue",
    f"SELECT ON {SCHEMA}.history",
)

ours_only = pytest.mark.skipif(not IS_OURS, reason="the settings of the server that was named are not ours to change")


@pytest.fixture(name="store")
async def one_store() -> AsyncIterator[PostgresStore]:
    """An open store on PostgreSQL as it usually is."""
    store = PostgresStore(store_url())
    await store.open()
    yield store
    await store.close()


def url_of_role(role: str, password: str = "", **parameters: object) -> str:
    """The server's URL for somebody with other rights."""
    return url_with(**parameters).replace("postgres:@", f"{role}:{password}@", 1)


@contextmanager
def role(name: str, *grants: str) -> Iterator[None]:
    """Somebody who has been granted this."""
    administer(f"DROP ROLE IF EXISTS {name}")
    administer(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    for grant in grants:
        administer(f"GRANT {grant} TO {name}")
    yield
    administer(f"DROP OWNED BY {name}")
    administer(f"DROP ROLE {name}")
