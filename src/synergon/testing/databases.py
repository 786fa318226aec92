"""The database of a block of `testing.use`: made for the block, or named by the caller."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from synergon.errors import OptionError
from synergon.options.store_urls import check_url
from synergon.stores import open_store

MEMORY: Final = "memory://"
NEW_FILE: Final = "sqlite://"
"""The URL of an SQLite file that is made for the block."""
SCHEMA_PREFIX: Final = "synergon_test_"


def check_test_url(url: str | None) -> str:
    """Return the URL for a block: `memory://` if `url` is None. Raises OptionError or ConfigurationError if it is not
    the URL of a store."""
    if url is None or url == MEMORY:
        return MEMORY
    if check_url(url).startswith(MEMORY):
        raise OptionError(f"a test in memory has a store of its own, without a name, got {url!r}; write memory://")
    if url != NEW_FILE:
        open_store(url)
    return url


@contextmanager
def database_of(url: str) -> Iterator[str]:
    """The URL of the database for a block. One that is made for the block is deleted at its end: a temporary file for
    `sqlite://`, and a new schema for a `postgresql://` URL that names none."""
    if url == NEW_FILE:
        with TemporaryDirectory(prefix="synergon-") as folder:
            yield f"sqlite:///{folder}/test.db"
    elif url.partition("://")[0] in ("postgresql", "postgres") and not _names_schema(url):
        schema = f"{SCHEMA_PREFIX}{secrets.token_hex(8)}"
        try:
            yield f"{url}{'&' if urlsplit(url).query else '?'}schema={schema}"
        finally:
            _drop_schema(url, schema)
    else:
        yield url


def _names_schema(url: str) -> bool:
    return any(name == "schema" for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _drop_schema(url: str, schema: str) -> None:
    """Drop the schema on an event loop of its own: this thread may have none, or be inside of one."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(_drop(url, schema))
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="synergon-test-schema")
    thread.start()
    thread.join()
    for error in errors:
        raise error


async def _drop(url: str, schema: str) -> None:
    from synergon.stores.postgres.address import Address
    from synergon.stores.postgres.connection import connect, disconnect

    address = Address.parse(url)
    connection = await connect(address)
    try:
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    finally:
        await disconnect(connection, address)
