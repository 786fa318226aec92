"""Kind: the argument type and the options of one kind in the `kinds` of a Provider subclass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Unpack

from synergon.errors import OptionError
from synergon.options.options import KindOptions, kind_policy, reject_unknown
from synergon.policies import ONCE

OPTIONS: Final = tuple(KindOptions.__annotations__)


class Kind:
    """The type of a kind's arguments, and the options of `@provider.task`, checked when the Kind is made.

    It has no option `name`, which is the key in `kinds`, and no `runs_in`, because `handle` is one coroutine for all
    kinds.
    """

    def __init__(self, arguments: Any, /, **options: Unpack[KindOptions]) -> None:
        if isinstance(arguments, Kind):
            raise OptionError(f"Kind takes the type of the arguments, got {arguments!r}")
        self.arguments = arguments
        # An iterator can be read only once, but the options are read again when the kind is registered.
        self.options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, Iterator) else value for name, value in options.items()
        }
        reject_unknown(self.options, OPTIONS, repr(self))
        kind_policy(self.options, repr(self), is_coroutine=True, default_retry=ONCE)

    def __repr__(self) -> str:
        return f"Kind({getattr(self.arguments, '__qualname__', self.arguments)})"
