"""Server: what a body that runs on one is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Server:
    """The place that an attempt has on a server. Ask for it by annotating a parameter, anywhere in the signature."""

    address: str
    provider: str
    slot: int = 0
    """Which of the server's places: from 0 on, and no two running tasks have the same."""
    labels: dict[str, Any] = field(default_factory=dict)
    """Free to use; what bodies on this node put here, later ones on the same server find."""

    def __str__(self) -> str:
        return self.address
