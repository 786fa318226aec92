"""Creates and migrates the tables of the PostgreSQL store. A row lock, which every database of the family has, excludes
concurrent migrations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from synergon.errors import SchemaError
from synergon.stores.base import read_version
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import FIX_PATH, ISOLATION, connect, disconnect
from synergon.stores.postgres.errors import translated
from synergon.stores.postgres.profile import STANDARD

MIGRATION_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a database. It does not depend on the address under which the database is reached."""

    database: str
    id: str


def foundation(address: Address) -> str:
    """The statements that precede all migrations: they create the schema, and the rows for its version, profile and
    identity.

    They also create the secret with which peers sign, because the role that runs tasks may lack the right to create it.
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
    """The whole script for a new database, for operators whose engines may not create tables."""
    scripts = address.profile.scripts(address.schema)
    version = f"UPDATE {address.schema}.meta SET value = '{len(scripts)}' WHERE name = 'schema_version';"
    return "\n\n".join(["BEGIN;", foundation(address), *scripts, version, "COMMIT;"])


async def prepare(address: Address) -> Identity:
    """Migrate the schema to the version of this code, and return the identity of the database. Any number of nodes may
    do this at once. Raises `SchemaError` if the schema is newer, has another profile, or the role may not change it."""
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
        await _lay_foundation(connection, address)  # another node may have created it meanwhile
    async with _transaction(connection):
        value = await connection.fetchval(
            f"SELECT value FROM {schema}.meta WHERE name = 'schema_version' FOR UPDATE", timeout=MIGRATION_SECONDS
        )
        await _check_profile(connection, address)  # another node may have chosen it meanwhile
        version, scripts = read_version(value, f"schema {schema}"), address.profile.scripts(schema)
        if version > len(scripts):
            raise _newer(schema, version, len(scripts))
        for script in scripts[version:]:
            await connection.execute(script, timeout=MIGRATION_SECONDS)
        await connection.execute(
            f"UPDATE {schema}.meta SET value = $1 WHERE name = 'schema_version'", str(len(scripts))
        )


@asynccontextmanager
async def _transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction with synergon's search_path. Behind a pooler the connection may have another path."""
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
    """Raise if the tables were created for another profile. A database without a stored profile is a standard one."""
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
    """The schema version of the database. None if it has no tables of synergon."""
    try:
        async with _transaction(connection):  # behind a pooler only a transaction keeps to one server
            value = await connection.fetchval(f"SELECT value FROM {schema}.meta WHERE name = 'schema_version'")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    return read_version(value, f"schema {schema}") if value is not None else None


async def version_at(address: Address) -> int | None:
    """Connect, and read the schema version without changing anything. None if the database has no tables of
    synergon."""
    connection = await connect(address)
    try:
        with translated(address):
            return await version_of(connection, address.schema)
    finally:
        await disconnect(connection, address)
