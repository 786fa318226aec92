"""Signatures: a message is believed if it was made with the cluster's secret, lately, and for the first time."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import Final

import msgspec

from synergon.errors import SynergonError
from synergon.peering.wire import PATH

METHOD: Final = "POST"
WINDOW: Final = 30_000_000
"""How many microseconds a message may be older or newer than the receiver's now, both by the store's clock."""
NONCES_KEPT: Final = 100_000


class SignatureError(SynergonError):
    """A message that must not be believed."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it travels: whoever changes any of it breaks the signature."""

    peer_id: str
    time: str
    """Microseconds since 1970 by the store's clock."""
    nonce: str
    signature: str
    body: bytes


class Signer:
    """Makes and checks envelopes for one engine."""

    def __init__(self, secret: bytes, now: Callable[[], int]) -> None:
        self._secret = secret
        self._now = now
        self._nonces: dict[str, int] = {}
        self._oldest = 0
        """Nothing of this moment or before is believed: its nonces may be forgotten."""

    def wrap(self, peer_id: str, body: bytes) -> Envelope:
        """The body, signed."""
        time, nonce = str(self._now()), os.urandom(16).hex()
        return Envelope(
            peer_id=peer_id, time=time, nonce=nonce, signature=self._sign(peer_id, time, nonce, body), body=body
        )

    def check(self, envelope: Envelope) -> None:
        """Raise SealError unless this is a message of the cluster, lately made and never seen before."""
        expected = self._sign(envelope.peer_id, envelope.time, envelope.nonce, envelope.body)
        if not hmac.compare_digest(expected.encode(), envelope.signature.encode()):
            raise SignatureError("the signature is wrong; the sender does not use this database")
        moment = _moment(envelope.time)
        if abs(moment - self._now()) > WINDOW or moment <= self._oldest:
            raise StaleSignature("the message is too old, or of the future, by the database's clock")
        if envelope.nonce in self._nonces:
            raise SignatureError("the message was received before")
        self._remember(envelope.nonce, moment)

    def _sign(self, peer_id: str, time: str, nonce: str, body: bytes) -> str:
        words = (METHOD, PATH, peer_id, time, nonce)
        # The length goes before each word: no two lists of words have the same text.
        head = "".join([f"{len(word)}:{word}\n" for word in words])
        return hmac.digest(self._secret, head.encode() + body, "sha256").hex()

    def _remember(self, nonce: str, moment: int) -> None:
        self._nonces[nonce] = moment
        while len(self._nonces) > NONCES_KEPT or self._is_past(next(iter(self._nonces.values()))):
            first = next(iter(self._nonces))
            self._oldest = max(self._oldest, self._nonces.pop(first))

    def _is_past(self, moment: int) -> bool:
        return moment < self._now() - WINDOW


def _moment(time: str) -> int:
    try:
        return int(time)
    except ValueError as error:  # of the cluster, by its signature, and yet not made by `wrap`
        raise SignatureError("the time of the message is not a whole number of microseconds") from error


class StaleSignature(SignatureError):
    """The signature is right, the time is not: the two clocks may have to be compared with the store's again."""
