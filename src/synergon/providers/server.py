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
    """For free use: task functions on this node find here what earlier ones on this server have stored."""

    def __str__(self) -> str:
        return self.address
