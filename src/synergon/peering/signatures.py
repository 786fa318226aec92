"""Signatures of messages between peers.

A message is accepted if it was signed with the cluster's secret, less than 30 seconds ago, and was not received before.
"""

from __future__ import annotations

import hmac
import os
from typing import Final, Protocol

import msgspec

from synergon.errors import SynergonError
from synergon.peering.wire import PATH

METHOD: Final = "POST"
WINDOW: Final = 30_000_000
"""Largest difference in microseconds between the times of message and receiver, both by the store's clock."""
MAX_NONCES: Final = 100_000


class SignatureError(SynergonError):
    """The message must not be accepted."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message with the fields that its signature covers; any change to them invalidates it."""

    peer_id: str
    time: str
    """Microseconds since 1970 by the store's clock."""
    nonce: str
    signature: str
    body: bytes


class SharedClock(Protocol):
    """The clock that all engines of a cluster have in common: the store's."""

    def now(self) -> int:
        """Microseconds since 1970."""


class Signer:
    """Signs and checks envelopes for one engine."""

    def __init__(self, secret: bytes, clock: SharedClock) -> None:
        self._secret = secret
        self._clock = clock
        self._nonces: dict[str, int] = {}
        self._oldest = 0
        """Messages of this time or earlier are rejected, because their nonces may have been dropped."""

    def wrap(self, peer_id: str, body: bytes) -> Envelope:
        """Sign the body."""
        time, nonce = str(self._clock.now()), os.urandom(16).hex()
        return Envelope(
            peer_id=peer_id, time=time, nonce=nonce, signature=self._sign(peer_id, time, nonce, body), body=body
        )

    def check(self, envelope: Envelope) -> None:
        """Raise SignatureError unless the envelope is signed with the cluster's secret, recent, and new."""
        expected = self._sign(envelope.peer_id, envelope.time, envelope.nonce, envelope.body)
        if not hmac.compare_digest(expected.encode(), envelope.signature.encode()):
            raise SignatureError("the signature is wrong; the sender does not use this database")
        moment = _moment(envelope.time)
        if abs(moment - self._clock.now()) > WINDOW or moment <= self._oldest:
            raise StaleSignature("the time of the message is too old or in the future, by the database's clock")
        if envelope.nonce in self._nonces:
            raise SignatureError("the message was received before")
        self._remember(envelope.nonce, moment)

    def _sign(self, peer_id: str, time: str, nonce: str, body: bytes) -> str:
        fields = (METHOD, PATH, peer_id, time, nonce)
        # The length prefix makes the text unambiguous: different fields never give equal text.
        head = "".join([f"{len(field)}:{field}\n" for field in fields])
        return hmac.digest(self._secret, head.encode() + body, "sha256").hex()

    def _remember(self, nonce: str, moment: int) -> None:
        self._nonces[nonce] = moment
        while len(self._nonces) > MAX_NONCES or self._is_past(next(iter(self._nonces.values()))):
            first = next(iter(self._nonces))
            self._oldest = max(self._oldest, self._nonces.pop(first))

    def _is_past(self, moment: int) -> bool:
        return moment < self._clock.now() - WINDOW


def _moment(time: str) -> int:
    try:
        return int(time)
    except ValueError as error:  # the signature is valid, but `wrap` did not make this envelope
        raise SignatureError("the time of the message is not a whole number of microseconds") from error


class StaleSignature(SignatureError):
    """The signature is valid, the time is not: sender or receiver may have to measure the store's clock again."""
