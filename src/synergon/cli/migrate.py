"""`synergon migrate`: create the tables, or bring them to this code's version."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from synergon.cli.database import AppOption, UrlOption, find_target, refuse_private, schema_versions, store_of
from synergon.cli.output import say
from synergon.stores.base import Store
from synergon.stores.sqlite import schema


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
    if print_sql:
        say("".join(["BEGIN;\n", *schema.statements(0), "COMMIT;"]))
        return
    store = store_of(engine)
    before = schema_versions(store)
    asyncio.run(_open_and_close(store))
    after = schema_versions(store)
    if before is not None and after is not None:
        say(_sentence(engine.settings.url, before[0], after[0]))


async def _open_and_close(store: Store) -> None:
    await store.open()
    await store.close()


def _sentence(url: str, before: int | None, after: int | None) -> str:
    if before == after:
        return f"{url} has schema version {after} already"
    if before is None:
        return f"{url} was created with schema version {after}"
    return f"{url} went from schema version {before} to {after}"
