"""An application's own web server, on the event loop of the test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from synergon.peering.listen_address import bind


@asynccontextmanager
async def served(app: Any, bound: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve the app, on a port of its own unless one is given; the value is its address.

    `Server.serve` is not used: it would install signal handlers in the process.
    """
    bound = bound or bind("127.0.0.1", 0, "listen")
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[bound])
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        await server.shutdown()
