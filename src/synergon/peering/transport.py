"""The port to the network: how an engine sends envelopes to peers and receives theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from synergon.errors import SynergonError
from synergon.peering.signatures import Envelope

Deliver = Callable[[Envelope], bytes]
"""Handles a received envelope, and returns the body of the answer. Raises Rejected if the envelope is not accepted."""


class Rejected(SynergonError):
    """The receiver does not accept the message. `status` is the HTTP status code that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class SendError(SynergonError):
    """The message may not have arrived: no connection, no answer in time, or a rejection."""


class NotTrusted(SendError):
    """The receiver does not accept the signature of the message, or its answer is not signed correctly."""


class Transport(Protocol):
    """Sends and receives the messages of one engine."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """The URL schemes of the addresses to which this transport sends. It sends to no other address."""

    async def serve(self, deliver: Deliver) -> str | None:
        """Start to receive. Returns the address that peers should use; None if there is none. Idempotent."""

    async def prepare(self) -> None:
        """Do in advance what would delay the first message. Called when the first peer is known."""

    async def send(self, address: str, envelope: Envelope) -> bytes:
        """Send the envelope, and return the body of the answer. Raises SendError if there is no valid answer."""

    async def close(self) -> None:
        """Stop receiving and sending."""
