"""Runs the work of parts of the PostgreSQL store: in transactions of their own, or in an open transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from synergon.stores.postgres.session import Session

Result = TypeVar("Result")


class Transactions(Protocol):
    """Runs functions that work on a session. A function gets the session and the further arguments. The store itself
    runs each in a transaction of its own."""

    async def write(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run a function in one transaction."""

    async def statement(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run a function that executes one statement, which is its own transaction."""


class OpenTransaction:
    """Runs all functions in one transaction that is already open."""

    def __init__(self, session: Session) -> None:
        self._session: Final = session

    async def write(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run a function in the transaction."""
        return await work(self._session, *arguments)

    async def statement(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run a function in the transaction."""
        return await work(self._session, *arguments)
