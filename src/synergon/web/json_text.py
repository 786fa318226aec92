"""JSON as the web API writes it: texts that are no Unicode are escaped, so that every record can be shown."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def encode(value: Any) -> bytes:
    """Encode plain JSON values as JSON."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which the standard library writes as an escape
        return json.dumps(value).encode()
