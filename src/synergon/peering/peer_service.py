"""PeerService: the single route `POST /peer/v1` of the peer port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from synergon.peering.http_headers import NAMES, check_headers
from synergon.peering.http_service import HttpAnswer
from synergon.peering.signatures import METHOD, Envelope
from synergon.peering.transport import Deliver, Rejected
from synergon.peering.wire import PATH, SIZE_LIMIT


class PeerService:
    """Passes the messages of peers to `deliver`."""

    method: Final = METHOD
    headers: Final = NAMES
    body_limit: Final = SIZE_LIMIT
    answer_limit: Final = None
    is_verifying: Final = True

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def check(self, method: str, path: str, fields: Mapping[str, str]) -> None:
        """Reject a request that is not a message of a peer."""
        if path != PATH:
            raise Rejected(404, f"the only path here is {PATH}")
        if method != METHOD:
            raise Rejected(405, f"the only method here is {METHOD}")
        check_headers(fields)

    def answer(self, path: str, fields: Mapping[str, str], body: bytes) -> HttpAnswer:  # noqa: ARG002  there is one path
        """Deliver the message, and return its answer."""
        return HttpAnswer(self._deliver(Envelope(body=body, **fields)))
