"""The way from a process to the store: statements that are slow, lost, or done without the answer coming back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.virtual_loop import OUTSIDE

from synergon.errors import StoreUnavailable
from synergon.stores.base import Capabilities

if TYPE_CHECKING:
    from tests.simulation.process import Process

GIVEN_UP_SECONDS: Final = 2.0
"""How long a process waits at the most before it calls the store unavailable."""


BESIDE: Final = {"now", "declare_retention", "append_statistics", "compact_statistics"}
"""Statements that meet weather by chances of their own, so that a seed makes the world that it made without them."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How likely it is that a statement goes wrong."""

    slow: float = 0.0
    lost: float = 0.0
    answer_lost: float = 0.0
    slowest_seconds: float = 0.0
    is_cut: bool = False
    """A partition: nothing gets through."""

    @property
    def is_calm(self) -> bool:
        return self == CALM


CALM: Final = Weather()


@dataclass(frozen=True, slots=True)
class Parcel:
    """A statement on its way."""

    name: str
    args: tuple[Any, ...]
    answer: asyncio.Future[Any]
    is_answer_lost: bool
    until_back: float


class Connection:
    """A store, as one process reaches it over the network. What is on its way there arrives even if the sender dies."""

    url = "simulated://"
    capabilities = Capabilities(shared=True, durable=True, transactions=False)

    def __init__(self, process: Process) -> None:
        self._process = process
        self._beside = random.Random(process.pid)
        self.weather = CALM

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Any call of the port."""

        async def statement(*args: Any) -> Any:
            return await self._send(name, args)

        return statement

    def introduce(self, client: str, logger: Any) -> None:
        """Nothing shows the names of connections here."""

    async def open(self) -> None:
        """The store is open already, and belongs to all."""

    async def close(self) -> None:
        """Nor does it end with this process."""

    async def keeper(self) -> KeeperConnection:
        """A path of its own through the same weather."""
        return KeeperConnection(self)

    async def renew(self, node_id: str, lease: int, published: bytes | None) -> Any:
        return await self._send("renew", (node_id, lease, published))

    async def dependencies(self, ids: Sequence[int], *, with_results: bool = False) -> Any:
        return await self._send("dependencies", (ids, with_results))

    async def declare_retention(self, cutoffs: Any, name: str, *, is_default: bool = False) -> Any:
        return await self._send("declare_retention", (cutoffs, name, is_default))

    async def _send(self, name: str, args: tuple[Any, ...]) -> Any:
        process, loop, weather = self._process, self._process.world.loop, self.weather
        chance = self._beside.random if name in BESIDE else process.clock.chance
        answer = loop.create_future()
        until_there = 0.0002 + 0.002 * chance()
        until_back = 0.0
        if not weather.is_calm:
            if weather.is_cut or chance() < weather.lost:
                process.trouble(GIVEN_UP_SECONDS)
                loop.call_later(GIVEN_UP_SECONDS * chance(), _answer, answer, None, _no_answer(), context=OUTSIDE)
                return await answer
            if chance() < weather.slow:
                until_there += weather.slowest_seconds * chance()
                until_back = weather.slowest_seconds * chance()
            process.trouble(until_there + until_back)
        is_answer_lost = chance() < weather.answer_lost
        parcel = Parcel(name, args, answer, is_answer_lost, until_back)
        loop.call_later(until_there, self._arrive, parcel, context=OUTSIDE)
        return await answer

    def _arrive(self, parcel: Parcel) -> None:
        world = self._process.world
        result, error = world.apply(self._process, parcel.name, parcel.args)
        if parcel.is_answer_lost:
            world.log(f"{self._process}: the answer to {parcel.name} is lost")
            world.loop.call_later(GIVEN_UP_SECONDS / 2, _answer, parcel.answer, None, _no_answer(), context=OUTSIDE)
        else:
            world.loop.call_later(parcel.until_back, _answer, parcel.answer, result, error, context=OUTSIDE)


def _no_answer() -> StoreUnavailable:
    return StoreUnavailable("the store does not answer")


def _answer(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():  # nobody waits for it any more
        return
    if error is not None:
        answer.set_exception(error)
        answer.exception()  # a process that has died meanwhile will not look at it
    else:
        answer.set_result(result)


class KeeperConnection:
    """Renews a lease."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        return bool(await self._connection.renew(node_id, lease, published))

    async def close(self) -> None:
        """There is nothing to give up."""
