"""Names of users' functions for messages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function in the user's code, even if it is wrapped in a `partial`. For a callable object, its
    repr."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or repr(function)
