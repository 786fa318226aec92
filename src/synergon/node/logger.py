"""A logger that adds the name of the node."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any


class NodeLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the node's name to every log record, in addition to the extra fields of the call."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the extra fields of the node and of the call."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
