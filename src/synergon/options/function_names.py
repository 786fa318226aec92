"""What users' functions are called where people read of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """As it stands in the user's code, also under a `partial`; of an object that is called like a function what it says
    of itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or repr(function)
