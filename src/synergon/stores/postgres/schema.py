"""Creating and migrating the tables, under a lock that every PostgreSQL-compatible database has: a row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from synergon.errors import SchemaError
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import FIX_PATH, ISOLATION, connect, disconnect
from synergon.stores.postgres.errors import translated
from synergon.stores.postgres.profile import STANDARD

MIGRATION_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Which database this is, wherever one connects to it from."""

    database: str
    id: str


def foundation(address: Address) -> str:
    """What is there before any version: the schema, and the rows that say which version, profile and database it is.

    The secret that peers sign with is made here too, by the database: whoever runs tasks may have no right to.
    """
    schema = address.schema
    return (
        f"{FIX_PATH};\n"
        f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
        f"CREATE TABLE IF NOT EXISTS {schema}.meta (name text PRIMARY KEY, value text NOT NULL);\n"
        f"INSERT INTO {schema}.meta VALUES ('schema_version', '0'), ('database_id', gen_random_uuid()::text),\n"
        f"    ('profile', '{address.profile.name}') ON CONFLICT DO NOTHING;\n"
        f"INSERT INTO {schema}.meta VALUES ('secret', gen_random_uuid()::text || gen_random_uuid()::text)\n"
        "    ON CONFLICT DO NOTHING;"
    )


def whole_sql(address: Address) -> str:
    """Everything that a new database needs, for people whose engine may not create tables."""
    scripts = address.profile.scripts(address.schema)
    version = f"UPDATE {address.schema}.meta SET value = '{len(scripts)}' WHERE name = 'schema_version';"
    return "\n\n".join(["BEGIN;", foundation(address), *scripts, version, "COMMIT;"])


async def prepare(address: Address) -> Identity:
    """Bring the schema to this code's version, beside any number of nodes that do the same."""
    connection = await connect(address)
    try:
        with translated(address):
            version, wanted = await version_of(connection, address.schema), len(address.profile.scripts(address.schema))
            if version is not None:
                await _check_profile(connection, address)
            if version is not None and version > wanted:
                raise _newer(address.schema, version, wanted)
            if version != wanted:
                await _migrate_if_allowed(connection, address, version)
            return await _identity(connection, address.schema)
    finally:
        await disconnect(connection, address)


async def _migrate_if_allowed(connection: asyncpg.Connection[Any], address: Address, version: int | None) -> None:
    try:
        await _migrate(connection, address)
    except asyncpg.InsufficientPrivilegeError as error:
        found = f"has version {version}" if version is not None else "is not there"
        wanted = len(address.profile.scripts(address.schema))
        raise SchemaError(
            f"the schema {address.schema!r} of {address.location} {found}, this code needs version {wanted}, "
            f"and this role may not change it ({error}); have its owner run `synergon migrate`, or the SQL of "
            "`synergon migrate --print-sql`"
        ) from error


async def _migrate(connection: asyncpg.Connection[Any], address: Address) -> None:
    schema = address.schema
    try:
        await _lay_foundation(connection, address)
    except (asyncpg.UniqueViolationError, asyncpg.DuplicateSchemaError, asyncpg.DuplicateTableError):
        await _lay_foundation(connection, address)  # two nodes at once: the second finds it made
    async with _transaction(connection):
        value = await connection.fetchval(
            f"SELECT value FROM {schema}.meta WHERE name = 'schema_version' FOR UPDATE", timeout=MIGRATION_SECONDS
        )
        await _check_profile(connection, address)  # two nodes at once: the first has chosen it
        version, scripts = int(value), address.profile.scripts(schema)
        if version > len(scripts):
            raise _newer(schema, version, len(scripts))
        for script in scripts[version:]:
            await connection.execute(script, timeout=MIGRATION_SECONDS)
        await connection.execute(
            f"UPDATE {schema}.meta SET value = $1 WHERE name = 'schema_version'", str(len(scripts))
        )


@asynccontextmanager
async def _transaction(connection: Any) -> AsyncIterator[None]:
    """With our search_path: the connection may be a pooler's, and then it has another one."""
    async with connection.transaction(isolation=ISOLATION):
        await connection.execute(FIX_PATH)
        yield


async def _lay_foundation(connection: asyncpg.Connection[Any], address: Address) -> None:
    async with _transaction(connection):
        await connection.execute(foundation(address))


def _newer(schema: str, version: int, wanted: int) -> SchemaError:
    return SchemaError(
        f"the schema {schema!r} was made by a newer synergon: it has version {version}, this code knows {wanted}; "
        "upgrade synergon, or use another schema"
    )


async def _check_profile(connection: asyncpg.Connection[Any], address: Address) -> None:
    """The tables of one profile are not those of another. Which it is was not always written down."""
    async with _transaction(connection):
        found = await connection.fetchval(f"SELECT value FROM {address.schema}.meta WHERE name = 'profile'")
    made_with, asked_for = found or STANDARD.name, address.profile.name
    if made_with != asked_for:
        raise SchemaError(
            f"the schema {address.schema!r} of {address.location} was made with profile={made_with}, and the URL has "
            f"profile={asked_for}; use ?profile={made_with}, or another schema"
        )


async def _identity(connection: asyncpg.Connection[Any], schema: str) -> Identity:
    async with _transaction(connection):
        row = await connection.fetchrow(
            f"SELECT current_database(), value FROM {schema}.meta WHERE name = 'database_id'"
        )
    assert row is not None, "the schema has no id"
    return Identity(row[0], row[1])


async def version_of(connection: Any, schema: str) -> int | None:
    """The version that the database has; None: there is none."""
    try:
        async with _transaction(connection):  # behind a pooler a statement is prepared and run on one server only so
            value = await connection.fetchval(f"SELECT value FROM {schema}.meta WHERE name = 'schema_version'")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    return int(value) if value is not None else None


async def version_at(address: Address) -> int | None:
    """The version that the database has, for whoever only looks; None: it has no tables of ours."""
    connection = await connect(address)
    try:
        with translated(address):
            return await version_of(connection, address.schema)
    finally:
        await disconnect(connection, address)
