"""Finds the database of a command, and connects to it.

The command line (`--app`, `--url`) takes precedence over `$SYNERGON_APP` and `$SYNERGON_URL`, and these over
`[tool.synergon]` in ./pyproject.toml. No command but `migrate` and `worker` creates a database or tables: a misspelt
path is an error, not an empty list.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from synergon.cli.apps import load_engine
from synergon.engine import Engine
from synergon.errors import NotAvailable, OptionError, SchemaError, StoreUnavailable
from synergon.options import settings
from synergon.options.store_urls import shown
from synergon.stores import open_store

if TYPE_CHECKING:
    from synergon.stores.base import Store

Result = TypeVar("Result")

PYPROJECT: Final = Path("pyproject.toml")

AppOption = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:ENGINE", help="The engine whose database to use.")
]
UrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help="The database, like sqlite:///app.db.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only, for programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An engine on the database of the command, and the source that named it."""

    engine: Engine
    app: str | None
    chosen_by: str


def use_pyproject() -> dict[str, Any]:
    """Make engines read ./pyproject.toml, if there is one. Returns its section [tool.synergon]."""
    if not PYPROJECT.is_file():
        return {}
    settings.use_pyproject(PYPROJECT)
    return settings.read_pyproject(PYPROJECT)


def find_app(given: str | None) -> tuple[str, str] | None:
    """The app to import, and the source that names it. None if no source does."""
    pyproject = use_pyproject()
    if given is not None:
        return given, "command line"
    if os.environ.get("SYNERGON_APP"):
        return os.environ["SYNERGON_APP"], "$SYNERGON_APP"
    if "app" in pyproject:
        return str(pyproject["app"]), str(PYPROJECT)
    return None


def find_target(app: str | None, url: str | None) -> Target:
    """The database of the command."""
    if app is not None and url is not None:
        raise OptionError("give --app or --url, not both: an app brings its own URL")
    found = find_app(app)
    if url is not None:
        return _by_url(url)
    # A URL in the environment takes precedence over an app in pyproject.toml.
    takes_precedence = found is not None and (found[1] != str(PYPROJECT) or not os.environ.get("SYNERGON_URL"))
    if found is not None and takes_precedence:
        return Target(engine=load_engine(found[0]), app=found[0], chosen_by=found[1])
    engine = Engine()
    return Target(engine=engine, app=None, chosen_by=engine.settings.sources["url"])


def _by_url(url: str) -> Target:
    engine = Engine(url)
    engine.settings = engine.settings.changed({"url": url}, "command line")
    return Target(engine=engine, app=None, chosen_by="command line")


def store_of(engine: Engine) -> Store:
    """A store for the engine's URL, not connected."""
    return open_store(engine.settings.url)


def require_shared_store(engine: Engine, what: str) -> None:
    """Raise NotAvailable if other processes cannot open the store. `what` is the subject of the message."""
    if not store_of(engine).capabilities.shared:
        raise NotAvailable(
            f"{what} cannot use {engine.settings.url}: it is in the memory of one process; use sqlite:///app.db"
        )


def run_connected(app: str | None, url: str | None, work: Callable[[Engine], Coroutine[Any, Any, Result]]) -> Result:
    """Run a function with a connected engine on the database of the command. Raises if the database does not exist."""
    return asyncio.run(_run_connected(find_target(app, url), work))


async def _run_connected(target: Target, work: Callable[[Engine], Coroutine[Any, Any, Result]]) -> Result:
    require_shared_store(target.engine, "the command line")
    await require_schema(target)
    async with target.engine as engine:
        return await work(engine)


async def require_schema(target: Target) -> None:
    """Raise if the database of the command does not exist, or has no tables of synergon."""
    store = store_of(target.engine)
    versions = await store.schema_versions()
    if versions is not None and versions.found is None:
        advice = (
            "name one with --app or --url" if target.chosen_by == "default" else "`synergon migrate` would create it"
        )
        raise StoreUnavailable(f"there is no {_name_of(store)}; {advice}")
    if versions is not None and versions.found == 0:
        raise SchemaError(f"the {_name_of(store)} has no tables of synergon; `synergon migrate` would create them")


def _name_of(store: Store) -> str:
    from synergon.stores.sqlite import SqliteStore

    if isinstance(store, SqliteStore):
        return f"database {store.path.absolute()}"
    return f"schema of synergon at {shown(store.url)}"
