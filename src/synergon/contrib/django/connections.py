"""Closes Django's database connections after tasks, as Django itself does after requests.

A connection belongs to the thread that has opened it, so it is closed there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from synergon.context import Context
from synergon.options.middleware_checks import CallNext

Value = TypeVar("Value")

logger: Final = logging.getLogger("synergon")


def close_stale() -> None:
    """Close the connections of this thread that are broken or older than CONN_MAX_AGE. Never raises."""
    _guarded(close_old_connections)


def close_all() -> None:
    """Close all connections of this thread. Never raises."""
    _guarded(connections.close_all)


def _guarded(close: Callable[[], object]) -> None:
    try:
        close()
    except Exception:
        logger.exception("a database connection of Django could not be closed")


def call_with_fresh_connections(function: Callable[[], Value]) -> Value:
    """Call a function in this thread, without stale connections before and after it."""
    close_stale()
    try:
        return function()
    finally:
        close_stale()


async def close_after_coroutine(_ctx: Context, call_next: CallNext) -> Any:
    """Middleware that gives each coroutine a thread of its own for Django's database, and closes the connections of
    that thread at the end of the task. Otherwise all tasks would share one thread and its connections."""
    async with ThreadSensitiveContext() as own:
        try:
            return await call_next()
        finally:
            if own in SyncToAsync.context_to_thread_executor:  # the coroutine has used the thread
                await sync_to_async(close_all)()
