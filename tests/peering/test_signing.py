"""Signatures: every envelope that must not be accepted is rejected."""

from __future__ import annotations

import msgspec
import pytest

from synergon.peering import signatures
from synergon.peering.signatures import WINDOW, SignatureError, Signer

SECRET = b"a secret of the cluster"


class Moment:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_800_000_000_000_000

    def now(self) -> int:
        return self.time


def test_a_signed_envelope_is_accepted_once() -> None:
    moment = Moment()
    envelope = Signer(SECRET, moment).wrap("me", "you", b"body")
    receiver = Signer(SECRET, moment)
    receiver.check(envelope, ["you"])
    with pytest.raises(SignatureError, match="received before"):
        receiver.check(envelope, ["you"])


def test_a_signature_with_another_secret_is_rejected() -> None:
    moment = Moment()
    with pytest.raises(SignatureError, match="signature is wrong"):
        Signer(SECRET, moment).check(Signer(b"guessed", moment).wrap("me", "you", b"body"), ["you"])


@pytest.mark.parametrize("field", ["peer_id", "receiver", "time", "nonce", "body", "signature"])
def test_changing_any_field_invalidates_the_signature(field: str) -> None:
    signer = Signer(SECRET, Moment())
    envelope = signer.wrap("me", "you", b"body")
    changed = msgspec.structs.replace(envelope, **{field: b"other" if field == "body" else "1"})
    with pytest.raises(SignatureError, match="signature is wrong"):
        signer.check(changed, ["you"])


@pytest.mark.parametrize("shift", [-WINDOW - 1, WINDOW + 1])
def test_an_envelope_outside_the_time_window_is_rejected(shift: int) -> None:
    moment = Moment()
    receiver = Signer(SECRET, moment)
    envelope = Signer(SECRET, moment).wrap("me", "you", b"body")
    moment.time += shift
    with pytest.raises(SignatureError, match="too old or in the future"):
        receiver.check(envelope, ["you"])


def test_an_envelope_whose_nonce_was_dropped_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "MAX_NONCES", 10)
    moment = Moment()
    signer = Signer(SECRET, moment)
    envelopes = []
    for _ in range(30):
        moment.time += 1000
        envelopes.append(signer.wrap("me", "you", b"body"))
        signer.check(envelopes[-1], ["you"])
    assert len(signer._nonces) <= 10
    for envelope in envelopes:
        with pytest.raises(SignatureError):
            signer.check(envelope, ["you"])


def test_old_nonces_are_dropped() -> None:
    moment = Moment()
    signer = Signer(SECRET, moment)
    for _ in range(100):
        signer.check(signer.wrap("me", "you", b"body"), ["you"])
    moment.time += 2 * WINDOW
    signer.check(signer.wrap("me", "you", b"body"), ["you"])
    assert len(signer._nonces) == 1


def test_an_envelope_for_another_receiver_is_rejected() -> None:
    signer = Signer(SECRET, Moment())
    envelope = signer.wrap("me", "you", b"body")
    with pytest.raises(SignatureError, match="for another node"):
        signer.check(envelope, ["they", "those"])
    signer.check(envelope, ["they", "you"])


def test_an_answer_is_accepted_for_its_own_message_only() -> None:
    signer = Signer(SECRET, Moment())
    envelope, other = (signer.wrap("me", "you", b"body") for _ in range(2))
    answer = signer.wrap_answer(envelope, b"two\nlines")
    assert signer.open_answer(envelope, answer) == b"two\nlines"
    for message, wrong in (
        (other, answer),
        (envelope, answer + b" "),
        (envelope, b"two\nlines"),
        (envelope, b"\xff\n{}"),
        (envelope, envelope.signature.encode() + b"\nbody"),
        (envelope, Signer(b"guessed", Moment()).wrap_answer(envelope, b"two\nlines")),
    ):
        with pytest.raises(SignatureError, match="signature of the answer is wrong"):
            signer.open_answer(message, wrong)
