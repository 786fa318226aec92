"""Inserts tasks inside a caller's own transaction. The transaction also sends a NOTIFY, which wakes the nodes after the
commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import msgspec

from synergon.errors import KeyConflict, OptionError
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.contention import Contention
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import SEARCH_PATH
from synergon.stores.postgres.drivers import Driver
from synergon.stores.postgres.schema import Identity
from synergon.stores.postgres.session import Session
from synergon.stores.rules import dependencies
from synergon.stores.rules.groups import store_group
from synergon.stores.rules.insert import check_keys, store

PAYLOAD_BYTES: Final = 7999
"""The maximum size of a notification. A longer list of kinds is replaced by an empty payload, which means any kind."""

Result = TypeVar("Result")


async def insert_on(
    driver: Driver, address: Address, identity: Identity, sql: Mapping[str, str], tasks: Sequence[NewTask]
) -> list[Insertion]:
    """Insert tasks on the caller's connection."""
    return await _insert_on(driver, address, identity, sql, tasks, lambda session: _insert(session, tasks))


async def open_group_on(
    driver: Driver, address: Address, identity: Identity, sql: Mapping[str, str], group: NewGroup
) -> OpenedGroup:
    """Insert a group or a flow on the caller's connection."""
    return await _insert_on(driver, address, identity, sql, group.tasks, lambda session: _open_group(session, group))


async def _insert_on(
    driver: Driver,
    address: Address,
    identity: Identity,
    sql: Mapping[str, str],
    tasks: Sequence[NewTask],
    work: Callable[[Session], Awaitable[Result]],
) -> Result:
    """Check that the caller's connection leads to this database and has an open transaction, then insert on it."""
    await driver.check_transaction()
    session = Session(driver, address.profile, sql, shard=0, is_callers=True)
    async with _fixed_path(session):
        await _check_same_database(session, address, identity)
        result = await _insert_all_or_none(session, tasks, work)
        if address.notifies:
            await session.rows("notify", address.channel, payload_of({task.kind for task in tasks}))
    return result


@asynccontextmanager
async def _fixed_path(session: Session) -> AsyncIterator[None]:
    """Set synergon's search_path, and restore the caller's at the end."""
    path, _ = await session.row("fix_path", SEARCH_PATH)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # a transaction that has failed is rolled back, and its settings with it
            await session.rows("restore_path", path)
        raise
    await session.rows("restore_path", path)


async def _insert_all_or_none(
    session: Session, tasks: Sequence[NewTask], work: Callable[[Session], Awaitable[Result]]
) -> Result:
    """Insert tasks with keys in a savepoint: a caller that catches a key conflict and commits must not commit a part of
    the call. (A missing dependency raises before anything is written.) If another transaction takes one of the keys
    meanwhile, the call is repeated."""
    if all(task.key is None for task in tasks):
        return await work(session)
    while True:
        await session.rows("begin_call")
        try:
            inserted = await work(session)
        except (KeyConflict, Contention) as error:
            await session.rows("undo_call")
            await session.rows("end_call")
            session.touched.key_queues.clear()
            if isinstance(error, KeyConflict):
                raise
        else:
            await session.rows("end_call")
            return inserted


async def _insert(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Like `rules.insert.insert`, without follow-ups, which would lock key queues until the caller commits. Instead, if
    a replaced task has left a key queue, the first waiting task of this key queue becomes `scheduled`, due at once, and
    the next `wake` balances the key queue."""
    await session.locks.for_new_tasks(tasks)
    holders = await check_keys(session, tasks)
    inserted = await store(session, tasks, holders, await dependencies.check(session, tasks))
    await _leave_follow_ups(session)
    return inserted


async def _open_group(session: Session, group: NewGroup) -> OpenedGroup:
    opened = await store_group(session, group)
    await _leave_follow_ups(session)
    return opened


async def _leave_follow_ups(session: Session) -> None:
    for kind, limit_key in sorted(session.touched.key_queues):
        await session.rows("schedule_first_waiting", kind, limit_key)
    await session.flush()


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
    """Encode kinds as the payload of a notification. Empty, which means any kind, if the list is too long."""
    text = msgspec.json.encode(sorted(kinds))
    return text.decode() if len(text) <= PAYLOAD_BYTES else ""


def kinds_of(payload: str) -> list[str] | None:
    """Decode the kinds of a notification. None means any kind."""
    try:
        return msgspec.json.decode(payload, type=list[str])
    except msgspec.DecodeError:
        return None
