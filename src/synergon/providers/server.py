"""Server: the server on which a task function of a provider runs, as it is passed to the function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Server:
    """The server on which an attempt runs, and its permit there. Annotate any parameter with `Server` to receive it."""

    address: str
    provider: str
    slot: int = 0
    """The number of the permit, from 0. No two running tasks on the server have the same number."""
    labels: dict[str, Any] = field(default_factory=dict)
    """Values that task functions store here. Later task functions on this server find them, if they run on this
    node."""

    def __str__(self) -> str:
        return self.address
