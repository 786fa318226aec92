"""The way from a process to its peers: a PipeNetwork on virtual time.

What is on its way arrives even if its sender dies. Whoever is dead refuses at once; whoever stands still does not
answer, and hears it all when it goes on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.simulation.virtual_loop import OUTSIDE

from synergon.peering.pipe import PipeNetwork, PipeTransport
from synergon.peering.signatures import Envelope
from synergon.peering.transport import Deliver, Rejected, SendError

if TYPE_CHECKING:
    from tests.simulation.simulated_engine import Citizen

GIVEN_UP_SECONDS: Final = 1.0
"""How long a sender waits at the most for an answer."""
SLOWEST_SECONDS: Final = 0.001


class Wire(PipeTransport):
    """One process's end of the network."""

    def __init__(self, network: PipeNetwork, process: Citizen) -> None:
        super().__init__(network, address_of(process.pid))
        self._process = process
        self._world = process.world

    async def serve(self, deliver: Deliver) -> str:
        return await super().serve(lambda envelope: self._arrive(deliver, envelope))

    async def send(self, address: str, envelope: Envelope) -> bytes:
        self._world.log(f"{self._process} → {address}: {envelope.body.decode()}")
        carrying = self._world.loop.create_task(self._carry(address, envelope), context=OUTSIDE.copy())
        carrying.add_done_callback(_look_at, context=OUTSIDE.copy())  # the sender may be dead by then
        await asyncio.wait([carrying])
        return carrying.result()

    async def _carry(self, address: str, envelope: Envelope) -> bytes:
        chances = self._world.wire_chances
        await asyncio.sleep(chances.uniform(0, SLOWEST_SECONDS))
        try:
            answer = await super().send(address, envelope)
        except SendError:
            if self._world.is_listening(address):  # or else it is refused at once
                await asyncio.sleep(chances.uniform(0, GIVEN_UP_SECONDS))
            raise
        await asyncio.sleep(chances.uniform(0, SLOWEST_SECONDS))
        return answer

    def _arrive(self, deliver: Deliver, envelope: Envelope) -> bytes:
        """Whatever the receiver does about it, it does as the process that it is."""
        process = self._process
        if not process.is_alive:
            raise SendError("nobody is there")
        if process.is_paused:
            self._world.loop.call_soon(_arrive_late, deliver, envelope, context=process.new_context())
            raise SendError("there is no answer")
        self._world.log(f"{process} hears {envelope.body.decode()}")
        return process.new_context().run(deliver, envelope)


def address_of(pid: int) -> str:
    """Where the peers of a process find it."""
    return f"pipe://{pid}"


def _arrive_late(deliver: Deliver, envelope: Envelope) -> None:
    try:
        deliver(envelope)
    except Rejected:
        return  # nobody waits for this answer


def _look_at(carried: asyncio.Task[bytes]) -> None:
    if not carried.cancelled():
        carried.exception()
