"""`testing.use`: an engine on another database for the duration of a block."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Final

from synergon.engine import Engine
from synergon.errors import NotAvailable
from synergon.options.store_urls import shown
from synergon.testing.clock import ManualClock
from synergon.testing.databases import MEMORY, check_test_url, database_of
from synergon.testing.substitution import Substitution, check_engine, close_sync, original_ports
from synergon.testing.tester import Tester


class Use:
    """What `testing.use()` returns, for `with` and `async with`. The block gets the engine itself."""

    def __init__(self, engine: Engine, url: str | None = None) -> None:
        self.engine: Final = check_engine(engine)
        self.url: Final = check_test_url(url)
        self._tester = Tester(engine, is_inline=False, now=None) if self.url == MEMORY else None
        self._block = self._tester or DatabaseBlock(engine, self.url)

    def __repr__(self) -> str:
        return f"<Use of {shown(self.url)} for {self.engine!r}>"

    @property
    def tester(self) -> Tester:
        """Runs and checks tasks, in memory. Raises NotAvailable on another database."""
        if self._tester is None:
            raise self._not_available("a tester", "look with engine.tasks(), and run tasks with engine.worker()")
        return self._tester

    @property
    def clock(self) -> ManualClock:
        """The clock of the test, in memory. Raises NotAvailable on another database."""
        if self._tester is None:
            raise self._not_available("a clock that a test can move", "give tasks short delays")
        return self._tester.clock

    def _not_available(self, what: str, remedy: str) -> NotAvailable:
        return NotAvailable(
            f"{what} exists in memory only, and this test uses {shown(self.url)}; use memory://, or {remedy}"
        )

    async def __aenter__(self) -> Engine:
        await self._block.__aenter__()
        return self.engine

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._block.__aexit__(kind, error, traceback)

    def __enter__(self) -> Engine:
        """Begin a block of a test without an event loop. The engine connects when the code under test needs it."""
        self._block.__enter__()
        return self.engine

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, traceback)


class DatabaseBlock:
    """A block in which an engine uses an SQLite file or PostgreSQL."""

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self._url = url
        self._stack = ExitStack()
        """The clean-up at the end of the block: first of the substitution, then of the database."""

    async def __aenter__(self) -> None:
        self._begin()
        try:
            await self._engine.connect()
        except BaseException:
            self._stack.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stack:
            await self._engine.stop()

    def __enter__(self) -> None:
        self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stack:
            close_sync(self._engine, is_failed=error is not None)

    def _begin(self) -> None:
        with ExitStack() as stack:
            url = stack.enter_context(database_of(self._url))
            stack.callback(Substitution(self._engine, original_ports(self._engine), url).end)
            self._stack = stack.pop_all()
