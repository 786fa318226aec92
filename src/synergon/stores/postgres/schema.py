"""Creating and migrating the tables, under a lock that every PostgreSQL-compatible database has: a row."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import asyncpg

from synergon.errors import SchemaError
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import connect, translated


def migrations(schema: str) -> list[str]:
    """The scripts, in order; the first makes version 1."""
    folder = files("synergon.stores").joinpath("migrations/postgres")
    scripts = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [script.read_text(encoding="utf-8").replace("{schema}", schema) for script in scripts]


def foundation(schema: str) -> str:
    """What is there before any version: the schema, and the row that says which version it has."""
    return (
        f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
        f"CREATE TABLE IF NOT EXISTS {schema}.meta (name text PRIMARY KEY, value text NOT NULL);\n"
        f"INSERT INTO {schema}.meta VALUES ('schema_version', '0') ON CONFLICT DO NOTHING;"
    )


def whole_sql(schema: str) -> str:
    """Everything that a new database needs, for people whose engine may not create tables."""
    version = f"UPDATE {schema}.meta SET value = '{len(migrations(schema))}' WHERE name = 'schema_version';"
    return "\n\n".join([foundation(schema), *migrations(schema), version])


async def prepare(address: Address) -> None:
    """Bring the schema to this code's version, beside any number of nodes that do the same."""
    connection = await connect(address)
    try:
        with translated():
            version = await _version(connection, address.schema)
            if version == len(migrations(address.schema)):
                return
            try:
                await _migrate(connection, address.schema)
            except asyncpg.InsufficientPrivilegeError as error:
                raise SchemaError(
                    f"the schema {address.schema!r} has version {version or 'none'}, this code needs "
                    f"{len(migrations(address.schema))}, and this role may not change it ({error}); have its owner run "
                    "`synergon migrate`, or the SQL of `synergon migrate --print-sql`"
                ) from error
    finally:
        await connection.close()


async def _migrate(connection: asyncpg.Connection[Any], schema: str) -> None:
    try:
        await connection.execute(foundation(schema))
    except (asyncpg.UniqueViolationError, asyncpg.DuplicateSchemaError, asyncpg.DuplicateTableError):
        await connection.execute(foundation(schema))  # two nodes at once: the second finds it made
    async with connection.transaction():
        value = await connection.fetchval(
            f"SELECT value FROM {schema}.meta WHERE name = 'schema_version' FOR UPDATE", timeout=60
        )
        version, scripts = int(value), migrations(schema)
        if version > len(scripts):
            raise SchemaError(
                f"the schema {schema!r} was made by a newer synergon: it has version {version}, this code knows "
                f"{len(scripts)}; upgrade synergon, or use another schema"
            )
        for script in scripts[version:]:
            await connection.execute(script)
        await connection.execute(
            f"UPDATE {schema}.meta SET value = $1 WHERE name = 'schema_version'", str(len(scripts))
        )


async def _version(connection: Any, schema: str) -> int | None:
    try:
        value = await connection.fetchval(f"SELECT value FROM {schema}.meta WHERE name = 'schema_version'")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    return int(value) if value is not None else None


async def version_of(connection: Any, schema: str) -> int | None:
    """The version that the database has; None: there is none."""
    return await _version(connection, schema)
