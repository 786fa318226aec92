"""The HTTP headers that carry the fields of an envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from synergon.peering.signatures import Envelope
from synergon.peering.transport import Rejected

HEADERS: Final = {
    "peer_id": "X-Peer-ID",
    "receiver": "X-Peer-To",
    "time": "X-Peer-Time",
    "nonce": "X-Peer-Nonce",
    "signature": "X-Peer-Signature",
}
NAMES: Final = {header.lower().encode(): field for field, header in HEADERS.items()}
"""The name of each field of the envelope, by the name of its header in lower case."""


def headers_of(envelope: Envelope) -> dict[str, str]:
    """The headers to send with the body of the envelope."""
    return {header: getattr(envelope, field) for field, header in HEADERS.items()}


def check_headers(fields: Mapping[str, str]) -> None:
    """Raise Rejected if a header of the envelope is missing."""
    for field, header in HEADERS.items():
        if not fields.get(field):
            raise Rejected(401, f"the header {header} is missing; messages between peers are signed")
