"""PipeNetwork: a network in memory that can be made as bad as any, and as bad again from the same seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from synergon.model.clock import Clock, SystemClock
from synergon.peering.signing import Envelope
from synergon.peering.transport import Deliver, Refused, SendError


@dataclass(slots=True, kw_only=True)
class Weather:
    """How bad the network is; may be changed at any time."""

    drop: float = 0.0
    """The chance that a message is lost; the sender thinks it arrived."""
    fail: float = 0.0
    """The chance that it is lost and the sender knows."""
    duplicate: float = 0.0
    """The chance that it arrives twice."""
    longest_delay: float = 0.0
    """Each takes between nothing and this many seconds, so that later ones overtake earlier ones."""


class PipeNetwork:
    """Give `network.transport()` to each engine; they then reach each other and nobody else."""

    def __init__(self, seed: int = 0, *, clock: Clock | None = None) -> None:
        self.weather = Weather()
        self.sent = 0
        """How many messages were given to it."""
        self.broken: set[str] = set()
        """Addresses that nobody reaches."""
        self.cut: set[tuple[str, str]] = set()
        """From where to where nothing gets through. One way only: if the way back is cut, a message arrives, and its
        sender does not learn that."""
        self._chance = random.Random(seed)
        self._clock: Clock = clock or SystemClock()
        self._receivers: dict[str, Deliver] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._made = 0

    def transport(self) -> PipeTransport:
        """A way into the network for one more engine."""
        self._made += 1
        return PipeTransport(self, f"pipe://{self._made}")

    def join(self, address: str, deliver: Deliver) -> None:
        """Messages to this address go there from now on."""
        self._receivers[address] = deliver

    def leave(self, address: str) -> None:
        """Nobody is there any more."""
        self._receivers.pop(address, None)

    async def carry(self, sender: str, address: str, envelope: Envelope) -> bytes:
        """Bring the message there, as the weather allows."""
        self.sent += 1
        await self._clock.sleep(0)
        if not self._is_reached(sender, address) or self._happens(self.weather.fail):
            raise SendError(f"{address} does not answer")
        answer = self._bring_somehow(address, envelope)
        if (address, sender) in self.cut:
            raise SendError(f"{address} does not answer")
        return answer

    def _is_reached(self, sender: str, address: str) -> bool:
        return address in self._receivers and address not in self.broken and (sender, address) not in self.cut

    def _bring_somehow(self, address: str, envelope: Envelope) -> bytes:
        if self._happens(self.weather.duplicate):
            self._bring_later(address, envelope)
        if self._happens(self.weather.drop):
            return b""
        if self.weather.longest_delay:
            self._bring_later(address, envelope)
            return b""
        return self._bring(address, envelope)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance

    def _bring_later(self, address: str, envelope: Envelope) -> None:
        task = asyncio.ensure_future(
            self._bring_after(self._chance.random() * self.weather.longest_delay, address, envelope)
        )
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _bring_after(self, seconds: float, address: str, envelope: Envelope) -> None:
        await self._clock.sleep(seconds)
        try:
            self._bring(address, envelope)
        except SendError:
            return  # nobody waits for this answer

    def _bring(self, address: str, envelope: Envelope) -> bytes:
        deliver = self._receivers.get(address)
        if deliver is None:
            raise SendError(f"{address} does not answer")
        try:
            return deliver(envelope)
        except Refused as refusal:
            raise SendError(f"answered {refusal.status} {refusal}") from refusal


class PipeTransport:
    """One engine's end of a PipeNetwork."""

    schemes = ("pipe://",)

    def __init__(self, network: PipeNetwork, address: str) -> None:
        self.address = address
        self._network = network

    async def serve(self, deliver: Deliver) -> str:
        """Be there."""
        self._network.join(self.address, deliver)
        return self.address

    async def prepare(self) -> None:
        """Nothing takes long here."""

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """Give it to the network."""
        return await self._network.carry(self.address, address, envelope)

    async def close(self) -> None:
        """Be gone."""
        self._network.leave(self.address)
