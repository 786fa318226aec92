"""`synergon migrate`: creates the tables, or upgrades them to the version of this code."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from synergon.cli.database import AppOption, UrlOption, find_target, require_shared_store, store_of
from synergon.cli.output import print_line, print_lines
from synergon.errors import OptionError
from synergon.options.store_urls import shown
from synergon.stores.base import SchemaVersions, Store


def migrate(
    app: AppOption = None,
    url: UrlOption = None,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Print the SQL for a new database, and run nothing.")
    ] = False,
    print_grants: Annotated[
        str | None,
        typer.Option(
            "--print-grants",
            metavar="ROLE",
            help="Print the SQL that gives a role the rights of a producer, worker, viewer or operator.",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="The role's name in the database. Default: ROLE.")
    ] = None,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Also replace the secret that messages between peers are signed with.")
    ] = False,
) -> None:
    """Create or upgrade the tables.

    Workers and producers also do this when they connect; run it to migrate before a deployment.
    """
    engine = find_target(app, url).engine
    require_shared_store(engine, "migrate")
    store = store_of(engine)
    if print_sql:
        print_lines(store.schema_sql())
        return
    if print_grants is not None:
        print_lines(store.grants_sql(print_grants, to or print_grants))
        return
    if to is not None:
        raise OptionError("--to names the role of --print-grants; give both")
    before, after = asyncio.run(_migrate(store, new_secret=new_secret))
    if before is not None and after is not None:
        print_line(_result(shown(engine.settings.url), before.found, after.found))
    if new_secret:
        print_line("messages between peers are signed with a new secret; running processes read it by themselves")


async def _migrate(store: Store, *, new_secret: bool) -> tuple[SchemaVersions | None, SchemaVersions | None]:
    before = await store.schema_versions()
    await store.open()
    try:
        if new_secret:
            await store.replace_secret()
    finally:
        await store.close()
    return before, await store.schema_versions()


def _result(url: str, before: int | None, after: int | None) -> str:
    if before == after:
        return f"{url} already has schema version {after}"
    if before is None:
        return f"{url} was created with schema version {after}"
    return f"{url} was upgraded from schema version {before} to {after}"
