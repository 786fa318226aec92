"""`synergon migrate`: create the tables, or bring them to this code's version."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from synergon.cli.database import AppOption, UrlOption, find_target, refuse_private, store_of
from synergon.cli.output import say
from synergon.options.store_urls import shown
from synergon.stores.base import SchemaVersions, Store


def migrate(
    app: AppOption = None,
    url: UrlOption = None,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Print what would be run for a new database, and run nothing.")
    ] = False,
) -> None:
    """Create or upgrade the tables.

    Workers and producers do the same when they connect; this is for those who want to see it, or to do it first.
    """
    engine = find_target(app, url).engine
    refuse_private(engine, "migrate")
    store = store_of(engine)
    if print_sql:
        say(store.schema_sql())
        return
    before, after = asyncio.run(_migrate(store))
    if before is not None and after is not None:
        say(_sentence(shown(engine.settings.url), before.found, after.found))


async def _migrate(store: Store) -> tuple[SchemaVersions | None, SchemaVersions | None]:
    before = await store.schema_versions()
    await store.open()
    await store.close()
    return before, await store.schema_versions()


def _sentence(url: str, before: int | None, after: int | None) -> str:
    if before == after:
        return f"{url} has schema version {after} already"
    if before is None:
        return f"{url} was created with schema version {after}"
    return f"{url} went from schema version {before} to {after}"
