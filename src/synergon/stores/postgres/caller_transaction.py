"""Inserts tasks inside a caller's own transaction. A NOTIFY in it wakes the nodes when it is committed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import msgspec

from synergon.errors import KeyConflict, OptionError
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import SEARCH_PATH
from synergon.stores.postgres.drivers import Driver
from synergon.stores.postgres.schema import Identity
from synergon.stores.postgres.session import Session
from synergon.stores.rules.insert import check_keys, store

PAYLOAD_BYTES: Final = 7999
"""The maximum size of a notification; a longer list of kinds is sent as `all`."""

Result = TypeVar("Result")


async def insert_on(
    driver: Driver, address: Address, identity: Identity, sql: Mapping[str, str], tasks: Sequence[NewTask]
) -> list[Insertion]:
    """Insert on the caller's connection, after a check that it leads to this database."""
    await driver.check_transaction()
    session = Session(driver, address.profile, sql, shard=0, is_callers=True)
    async with _fixed_path(session):
        await _check_same_database(session, address, identity)
        inserted = await _insert_all_or_none(session, tasks)
        if address.notifies:
            await session.rows("notify", address.channel, payload_of({task.kind for task in tasks}))
    return inserted


@asynccontextmanager
async def _fixed_path(session: Session) -> AsyncIterator[None]:
    """Our statements under our search_path; then the caller's again."""
    path, _ = await session.row("fix_path", SEARCH_PATH)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # a transaction that has failed is rolled back, and its settings with it
            await session.rows("restore_path", path)
        raise
    await session.rows("restore_path", path)


async def _insert_all_or_none(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert in a savepoint: a caller that catches a conflict and commits must not commit a part of the call."""
    if all(task.key is None or task.on_conflict == "return" for task in tasks):
        return await _insert(session, tasks)
    await session.rows("begin_call")
    try:
        inserted = await _insert(session, tasks)
    except KeyConflict:
        await session.rows("undo_call")
        await session.rows("end_call")
        raise
    await session.rows("end_call")
    return inserted


async def _insert(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """`rules.insert.insert` without follow-ups, which would lock key queues until the caller commits. Instead the first
    waiting task of a key queue that a replaced task has left becomes due at once, and the node that wakes it balances
    the key queue."""
    await session.locks.for_new_tasks(tasks)
    inserted = await store(session, tasks, await check_keys(session, tasks))
    for kind, limit_key in sorted(session.touched.key_queues):
        await session.rows("schedule_first_waiting", kind, limit_key)
    await session.flush()
    return inserted


async def _check_same_database(session: Session, address: Address, identity: Identity) -> None:
    # Looked up by name first: a missing table would abort the caller's transaction.
    database, has_tables = await session.row("database_and_schema", f"{address.schema}.meta")
    found = await session.value("database_id") if has_tables else None
    if database != identity.database or found != identity.id:
        raise OptionError(
            f"conn is a connection to another database: {database!r} "
            f"{'with a schema' if has_tables else 'without a schema'} {address.schema!r}, "
            f"but the engine's is {identity.database!r} at {address.location}; they must be the same"
        )


def payload_of(kinds: set[str]) -> str:
    """Encode kinds as the payload of a notification."""
    text = msgspec.json.encode(sorted(kinds))
    return text.decode() if len(text) <= PAYLOAD_BYTES else ""


def kinds_of(payload: str) -> list[str] | None:
    """Decode the kinds of a notification. None means any kind."""
    try:
        return msgspec.json.decode(payload, type=list[str])
    except msgspec.DecodeError:
        return None
