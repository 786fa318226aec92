"""A logger that says which node speaks."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any


class NodeLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the node's name to every record, beside what the call adds."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Join what the node and the call add."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
