"""PipeNetwork: an in-memory network for tests, with faults that a seed reproduces."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from synergon.model.clock import Clock, SystemClock
from synergon.peering.signatures import Envelope
from synergon.peering.transport import Deliver, NotTrusted, Rejected, SendError


@dataclass(slots=True, kw_only=True)
class NetworkFaults:
    """The probabilities of faults. They may be changed at any time."""

    drop: float = 0.0
    """The probability that a message is lost without an error at the sender."""
    fail: float = 0.0
    """The probability that a message is lost with an error at the sender."""
    duplicate: float = 0.0
    """The probability that a message arrives twice."""
    longest_delay: float = 0.0
    """Each message is delayed by a random time of up to this many seconds, so messages can overtake each other."""


class PipeNetwork:
    """An in-memory network. Each engine gets its own `network.transport()`."""

    def __init__(self, seed: int = 0, *, clock: Clock | None = None) -> None:
        self.faults: NetworkFaults = NetworkFaults()
        self.sent: int = 0
        """The number of messages that were sent, delivered or not."""
        self.broken: set[str] = set()
        """Addresses that cannot be reached."""
        self.cut: set[tuple[str, str]] = set()
        """Pairs of sender and receiver between which nothing arrives. A pair is one direction: if only the reverse
        direction is cut, a message arrives, and its sender gets an error."""
        self._chance = random.Random(seed)
        self._clock: Clock = clock or SystemClock()
        self._receivers: dict[str, Deliver] = {}
        self._delayed: set[asyncio.Task[None]] = set()
        self._transports = 0

    def transport(self) -> PipeTransport:
        """A new transport with an address of its own."""
        self._transports += 1
        return PipeTransport(self, f"pipe://{self._transports}")

    def join(self, address: str, deliver: Deliver) -> None:
        """Deliver messages for this address to `deliver`."""
        self._receivers[address] = deliver

    def leave(self, address: str) -> None:
        """Stop delivering messages to this address."""
        self._receivers.pop(address, None)

    async def carry(self, sender: str, address: str, envelope: Envelope) -> bytes:
        """Deliver the message, subject to the faults, and return the answer."""
        self.sent += 1
        await self._clock.sleep(0)
        if not self._is_reachable(sender, address) or self._happens(self.faults.fail):
            raise SendError(f"{address} does not answer")
        answer = self._deliver_with_faults(address, envelope)
        if (address, sender) in self.cut:
            raise SendError(f"{address} does not answer")
        return answer

    def _is_reachable(self, sender: str, address: str) -> bool:
        return address in self._receivers and address not in self.broken and (sender, address) not in self.cut

    def _deliver_with_faults(self, address: str, envelope: Envelope) -> bytes:
        if self._happens(self.faults.duplicate):
            self._deliver_later(address, envelope)
        if self._happens(self.faults.drop):
            return b""
        if self.faults.longest_delay:
            self._deliver_later(address, envelope)
            return b""
        return self._deliver(address, envelope)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance

    def _deliver_later(self, address: str, envelope: Envelope) -> None:
        task = asyncio.ensure_future(
            self._deliver_after(self._chance.random() * self.faults.longest_delay, address, envelope)
        )
        self._delayed.add(task)
        task.add_done_callback(self._delayed.discard)

    async def _deliver_after(self, seconds: float, address: str, envelope: Envelope) -> None:
        await self._clock.sleep(seconds)
        try:
            self._deliver(address, envelope)
        except SendError:
            return  # the sender has its (empty) answer already

    def _deliver(self, address: str, envelope: Envelope) -> bytes:
        deliver = self._receivers.get(address)
        if deliver is None:
            raise SendError(f"{address} does not answer")
        try:
            return deliver(envelope)
        except Rejected as rejection:
            problem = NotTrusted if rejection.status == 401 else SendError
            raise problem(f"answered {rejection.status} {rejection}") from rejection


class PipeTransport:
    """The transport of one engine in a PipeNetwork."""

    schemes: Final = ("pipe://",)

    def __init__(self, network: PipeNetwork, address: str) -> None:
        self.address = address
        self._network = network

    async def serve(self, deliver: Deliver) -> str:
        """Start to receive. Returns the address."""
        self._network.join(self.address, deliver)
        return self.address

    async def prepare(self) -> None:
        """Does nothing: there is nothing to load."""

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """Send the message through the network, and return the answer."""
        return await self._network.carry(self.address, address, envelope)

    async def close(self) -> None:
        """Stop receiving."""
        self._network.leave(self.address)
