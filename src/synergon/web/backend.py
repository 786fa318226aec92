"""The backend of the web apps: an engine with connections of its own.

So a worker in this process never waits for a connection that a web request uses, and a request never for one of the
worker. A statement of a web request ends after a few seconds.
"""

from __future__ import annotations

import asyncio
from typing import Final

from synergon.engine import Engine
from synergon.options.settings import AUTO
from synergon.stores import open_store

POOL: Final = 4
"""How many connections web requests share."""
STATEMENT_SECONDS: Final = 10
"""How long a statement of a web request may take."""


class Backend:
    """Opens the engine that answers web requests, with the first request. It is closed with the engine of the
    application, or by `close`."""

    def __init__(self, engine: Engine) -> None:
        self._app_engine = engine
        self._has_own = open_store(engine.settings.url).capabilities.shared
        """Whether it has connections of its own. A store in memory has only those of the application's engine."""
        self._own: Engine | None = None
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def engine(self) -> Engine:
        """The connected engine. Raises NotConnected if the store is in memory and the application's engine is not
        connected, StoreUnavailable if the database does not answer."""
        if not self._has_own:
            self._app_engine._store  # noqa: B018  raises NotConnected
            return self._app_engine
        if not self._is_open(self._own):
            async with self._lock():
                if not self._is_open(self._own):
                    self._own = await self._open()
        assert self._own is not None
        return self._own

    @staticmethod
    def _is_open(engine: Engine | None) -> bool:
        return engine is not None and engine._connection.loop is asyncio.get_running_loop()

    def _lock(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        return self._opening[1]

    async def _open(self) -> Engine:
        given = self._app_engine.settings
        own = Engine(given.url, logger=self._app_engine.logger)
        own.settings = given.changed(
            {
                "url": _bounded(given.url),
                "name": f"{given.name[:190]} web",
                "listen": None if given.listen is None else AUTO,  # an address can be bound once
                "advertise": None,
                "health_listen": None,
            },
            "web",
        )
        own.kinds.update(self._app_engine.kinds)
        await own.connect()
        self._app_engine._lifecycle.companions.append(own)
        return own

    async def close(self) -> None:
        """Disconnect."""
        own, self._own = self._own, None
        if own is not None and own in self._app_engine._lifecycle.companions:
            self._app_engine._lifecycle.companions.remove(own)
            await own.stop()


def _bounded(url: str) -> str:
    """The URL of the database, with a pool and a timeout for web requests."""
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    address, _, query = url.partition("?")
    remaining = [each for each in query.split("&") if each and each.partition("=")[0] not in ("pool", "timeout")]
    return f"{address}?{'&'.join([*remaining, f'pool={POOL}', f'timeout={STATEMENT_SECONDS}'])}"
