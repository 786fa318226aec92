"""Signatures: everything that must not be believed is refused."""

from __future__ import annotations

import msgspec
import pytest

from synergon.peering import signing as sealing
from synergon.peering.signing import WINDOW, SignatureError, Signer

SECRET = b"a secret of the cluster"


class Moment:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now


def test_a_sealed_message_is_believed_once() -> None:
    moment = Moment()
    envelope = Signer(SECRET, moment).wrap("me", b"body")
    receiver = Signer(SECRET, moment)
    receiver.check(envelope)
    with pytest.raises(SignatureError, match="received before"):
        receiver.check(envelope)


def test_another_secret_is_refused() -> None:
    moment = Moment()
    with pytest.raises(SignatureError, match="signature is wrong"):
        Signer(SECRET, moment).check(Signer(b"guessed", moment).wrap("me", b"body"))


@pytest.mark.parametrize("field", ["peer_id", "time", "nonce", "body", "signature"])
def test_whatever_is_changed_breaks_the_signature(field: str) -> None:
    seal = Signer(SECRET, Moment())
    envelope = seal.wrap("me", b"body")
    changed = msgspec.structs.replace(envelope, **{field: b"other" if field == "body" else "1"})
    with pytest.raises(SignatureError, match="signature is wrong"):
        seal.check(changed)


@pytest.mark.parametrize("shift", [-WINDOW - 1, WINDOW + 1])
def test_a_message_of_another_time_is_refused(shift: int) -> None:
    moment = Moment()
    receiver = Signer(SECRET, moment)
    envelope = Signer(SECRET, moment).wrap("me", b"body")
    moment.now += shift
    with pytest.raises(SignatureError, match="too old, or of the future"):
        receiver.check(envelope)


def test_what_is_forgotten_cannot_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "NONCES_KEPT", 10)
    moment = Moment()
    seal = Signer(SECRET, moment)
    envelopes = []
    for _ in range(30):
        moment.now += 1000
        envelopes.append(seal.wrap("me", b"body"))
        seal.check(envelopes[-1])
    assert len(seal._nonces) <= 10
    for envelope in envelopes:
        with pytest.raises(SignatureError):
            seal.check(envelope)


def test_old_nonces_are_let_go() -> None:
    moment = Moment()
    seal = Signer(SECRET, moment)
    for _ in range(100):
        seal.check(seal.wrap("me", b"body"))
    moment.now += 2 * WINDOW
    seal.check(seal.wrap("me", b"body"))
    assert len(seal._nonces) == 1
