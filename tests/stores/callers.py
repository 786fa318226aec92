"""Users of a store's database with connections and tables of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import asyncpg
from tests.postgres_server import SCHEMA, administer, server_url

from synergon.stores.base import Store
from synergon.stores.sqlite import SqliteStore


class Caller:
    """Somebody who writes words into a table of their own, on any connection that has `execute`."""

    def __init__(self, connection: Any, table: str) -> None:
        self.connection = connection
        self.table = table

    async def do(self, sql: str) -> None:
        """Run it."""
        answer = self.connection.execute(sql)
        if isawaitable(answer):
            await answer

    async def write(self, word: str) -> None:
        """Put a word into the table."""
        await write(self.connection, self.table, word)

    async def words(self) -> list[str]:
        """What is in the table."""
        sql = f"SELECT word FROM {self.table} ORDER BY word"
        if isinstance(self.connection, sqlite3.Connection):
            return [word for (word,) in self.connection.execute(sql)]
        return [word for (word,) in await self.connection.fetch(sql)]


async def write(connection: Any, table: str, word: str) -> None:
    """Put a word into a caller's table, on whatever connection."""
    answer = connection.execute(f"INSERT INTO {table} VALUES ('{word}')")
    if isawaitable(answer):
        await answer


def make_table() -> str:
    """A table for words in PostgreSQL, with nothing in it."""
    administer(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}; CREATE TABLE IF NOT EXISTS {SCHEMA}.mine (word text)")
    administer(f"TRUNCATE {SCHEMA}.mine")
    return f"{SCHEMA}.mine"


@asynccontextmanager
async def caller_of(store: Store) -> AsyncIterator[Caller]:
    """A caller whose connection leads to the store's database."""
    if isinstance(store, SqliteStore):
        file = sqlite3.connect(store.path, isolation_level=None)
        file.execute("CREATE TABLE mine (word TEXT)")
        yield Caller(file, "mine")
        file.close()
    else:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
        yield Caller(connection, make_table())
        await connection.close()
