"""The pytest plugin of synergon: fixtures for tests of an application's tasks.

pytest imports this package in every project that has synergon installed. So it stands beside synergon, and imports
synergon only when a test requests a fixture.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from synergon import Engine
    from synergon.testing import ManualClock, Tester, Use


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini options."""
    parser.addini("synergon_engine", "the engine of the application, like shop.app:engine", default="")
    parser.addini("synergon_url", "the database of tests with synergon_engine, by default memory://", default="")


@pytest.fixture
def synergon_url(pytestconfig: pytest.Config) -> str:
    """The URL of the database for `synergon_engine`: that of the ini option, or memory. Override it for some tests."""
    return str(pytestconfig.getini("synergon_url")) or "memory://"


@pytest.fixture
def _synergon_use(request: pytest.FixtureRequest, synergon_url: str) -> Iterator[Use]:
    from synergon.testing import use

    block = use(_engine_of(request.config), synergon_url)
    with block as engine, _connected(request.node, engine):
        yield block


@pytest.fixture
def synergon_engine(_synergon_use: Use) -> Engine:
    """The engine of the application, on another database for this test: in memory, unless `synergon_url` says
    otherwise. Connected, if the test is a coroutine function."""
    return _synergon_use.engine


@pytest.fixture
def synergon_tester(_synergon_use: Use) -> Tester:
    """Runs the tasks of this test, and checks what was enqueued. In memory only."""
    return _synergon_use.tester


@pytest.fixture
def synergon_clock(_synergon_use: Use) -> ManualClock:
    """The clock of this test, which stands still until the test advances it. In memory only."""
    return _synergon_use.clock


def _engine_of(config: pytest.Config) -> Engine:
    """The engine that the project names: in the ini option, or for the command line in pyproject.toml."""
    from synergon.cli.apps import load_engine
    from synergon.errors import ConfigurationError
    from synergon.options.settings import read_pyproject

    pyproject = config.rootpath / "pyproject.toml"
    try:
        name = config.getini("synergon_engine")
        if not name and pyproject.exists():
            name = read_pyproject(pyproject).get("app")
        if not name:
            raise ConfigurationError(
                "synergon_engine: which engine? Set synergon_engine = shop.app:engine among the options of pytest, or "
                "app in [tool.synergon] of pyproject.toml"
            )
        return load_engine(name)
    except ConfigurationError as error:
        pytest.fail(str(error), pytrace=False)


@contextmanager
def _connected(item: Any, engine: Engine) -> Iterator[None]:
    """Let a test that is a coroutine function begin with a connected engine. The engine connects inside the test,
    because its event loop runs only there."""
    function = item.obj
    if not inspect.iscoroutinefunction(function):
        yield
        return

    @functools.wraps(function)
    async def connected(*args: Any, **kwargs: Any) -> Any:
        async with engine:
            return await function(*args, **kwargs)

    item.obj = connected
    try:
        yield
    finally:
        item.obj = function
