"""One PostgreSQL as it usually is, and those who may do less there than its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from tests.postgres_server import IS_OURS, SCHEMA, administer, store_url, url_with

from synergon.stores.postgres import PostgresStore


def statements(script: str) -> list[str]:
    """The statements of a script without comments behind them."""
    lines = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    return [statement.strip() for statement in lines.split(";") if statement.strip()]


def grants_of(duty: str) -> tuple[str, ...]:
    """What a role with this duty is granted, as `role` takes it."""
    printed = statements(PostgresStore(url_with(schema=SCHEMA)).grants_sql(duty, duty))
    return tuple(statement.removeprefix("GRANT ").removesuffix(f" TO {duty}") for statement in printed)


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
    administer(f'DROP ROLE IF EXISTS "{name}"')
    administer(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'right'")
    try:
        for grant in grants:
            administer(f'GRANT {grant} TO "{name}"')
        yield
    finally:
        administer(f'DROP OWNED BY "{name}"')
        administer(f'DROP ROLE "{name}"')
