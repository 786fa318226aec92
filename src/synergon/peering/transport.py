"""The port to the network: how an envelope gets to a peer, and how one arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from synergon.errors import SynergonError
from synergon.peering.signing import Envelope

Deliver = Callable[[Envelope], bytes]
"""What a transport does with an envelope that has arrived: the answer's body, or Refused."""


class Refused(SynergonError):
    """The receiver does not take the message. `status` is HTTP's word for why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class SendError(SynergonError):
    """The message may not have arrived: nobody there, no answer in time, or a refusal."""


class Transport(Protocol):
    """One engine's way to its peers."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """How addresses begin that this transport may call; no other is ever called."""

    async def serve(self, deliver: Deliver) -> str | None:
        """Begin to take messages; the address that peers should use, None if there is none. Idempotent."""

    async def prepare(self) -> None:
        """There is somebody to send to: do ahead what the first message would have to wait for."""

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """Bring it there and return the answer; SendError if that did not work."""

    async def close(self) -> None:
        """Take and send no more."""
