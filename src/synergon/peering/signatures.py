"""Signatures of messages between peers.

A message is accepted if it was signed with the cluster's secret, for this engine, less than 30 seconds ago, and was not
received before. An answer is accepted if it was signed with the secret, for the message that it answers.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Container
from typing import Final, Protocol

import msgspec

from synergon.errors import SynergonError
from synergon.peering.wire import PATH

METHOD: Final = "POST"
ANSWER: Final = "ANSWER"
"""Replaces the method in the text that the signature of an answer covers."""
WINDOW: Final = 30_000_000
"""The largest accepted difference in microseconds between the time of a message and the time at the receiver, both by
the store's clock."""
MAX_NONCES: Final = 100_000


class SignatureError(SynergonError):
    """The message must not be accepted: its signature, receiver, time or nonce is wrong."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message with the fields that its signature covers. Any change of them invalidates the signature."""

    peer_id: str
    receiver: str
    """The id of the receiver in the node table. It is new at each start of a process."""
    time: str
    """Microseconds since 1970 by the store's clock."""
    nonce: str
    signature: str
    body: bytes


class SharedClock(Protocol):
    """The clock that all engines of a cluster share: the store's."""

    def now(self) -> int:
        """Microseconds since 1970."""


class Signer:
    """Signs and checks envelopes for one engine."""

    def __init__(self, secret: bytes, clock: SharedClock) -> None:
        self.secret = secret
        self._clock = clock
        self._nonces: dict[str, int] = {}
        self._oldest = 0
        """Messages of this moment or earlier are rejected, because their nonces may have been dropped."""

    def wrap(self, peer_id: str, receiver: str, body: bytes) -> Envelope:
        """Sign the body for one receiver."""
        time, nonce = str(self._clock.now()), os.urandom(16).hex()
        signature = self._sign(METHOD, (peer_id, receiver, time, nonce), body)
        return Envelope(peer_id=peer_id, receiver=receiver, time=time, nonce=nonce, signature=signature, body=body)

    def check(self, envelope: Envelope, own_ids: Container[str]) -> None:
        """Raise SignatureError unless the envelope is signed with the secret, for one of these ids, recent, and not
        received before."""
        if not _is_equal(self._sign(METHOD, _fields(envelope), envelope.body), envelope.signature):
            raise WrongSignature("the signature is wrong; the sender does not use this database")
        if envelope.receiver not in own_ids:
            raise SignatureError("the message is for another node; this address had another owner")
        moment = _moment(envelope.time)
        if abs(moment - self._clock.now()) > WINDOW or moment <= self._oldest:
            raise StaleSignature("the time of the message is too old or in the future, by the database's clock")
        if envelope.nonce in self._nonces:
            raise SignatureError("the message was received before")
        self._remember(envelope.nonce, moment)

    def wrap_answer(self, envelope: Envelope, body: bytes) -> bytes:
        """The answer to the envelope: a line with its signature, then the body."""
        return self._sign(ANSWER, _fields(envelope), body).encode() + b"\n" + body

    def open_answer(self, envelope: Envelope, answer: bytes) -> bytes:
        """The body of the answer. Raises WrongSignature if the answer was not signed for this envelope."""
        signature, _, body = answer.partition(b"\n")
        if not _is_equal(self._sign(ANSWER, _fields(envelope), body), signature.decode("latin-1")):
            raise WrongSignature("the signature of the answer is wrong; is another server at this address?")
        return body

    def _sign(self, method: str, fields: tuple[str, ...], body: bytes) -> str:
        # The length prefix makes the text unambiguous: different fields never give equal text.
        head = "".join([f"{len(field)}:{field}\n" for field in (method, PATH, *fields)])
        return hmac.digest(self.secret, head.encode() + body, "sha256").hex()

    def _remember(self, nonce: str, moment: int) -> None:
        self._nonces[nonce] = moment
        while len(self._nonces) > MAX_NONCES or self._is_past(next(iter(self._nonces.values()))):
            first = next(iter(self._nonces))
            self._oldest = max(self._oldest, self._nonces.pop(first))

    def _is_past(self, moment: int) -> bool:
        return moment < self._clock.now() - WINDOW


def _fields(envelope: Envelope) -> tuple[str, ...]:
    return envelope.peer_id, envelope.receiver, envelope.time, envelope.nonce


def _is_equal(expected: str, signature: str) -> bool:
    return hmac.compare_digest(expected.encode(), signature.encode())


def _moment(time: str) -> int:
    try:
        return int(time)
    except ValueError as error:  # the signature is valid, but `wrap` did not make this envelope
        raise SignatureError("the time of the message is not a whole number of microseconds") from error


class WrongSignature(SignatureError):
    """Sender and receiver use different secrets: one of them may have to read the secret again."""


class StaleSignature(SignatureError):
    """The signature is valid, but the time is not: sender or receiver may have to measure the store's clock again."""
