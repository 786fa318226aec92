"""Kind: what a provider's own class says of one of its kinds, beside its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Unpack

from synergon.errors import OptionError
from synergon.options.options import KindOptions, kind_policy, refuse_unknown
from synergon.policies import ONCE

OPTIONS: Final = tuple(KindOptions.__annotations__)


class Kind:
    """The type of a kind's arguments, and the options that `@provider.task` takes; not `name`, which stands beside it,
    and not `runs_in`, as `handle` is one coroutine for all. Checked when it is made."""

    def __init__(self, arguments: Any, /, **options: Unpack[KindOptions]) -> None:
        if isinstance(arguments, Kind):
            raise OptionError(f"a Kind is made of a type of arguments, got {arguments!r}")
        self.arguments = arguments
        # What can be gone through once is kept for whoever does it next.
        self.options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, Iterator) else value for name, value in options.items()
        }
        refuse_unknown(self.options, OPTIONS, repr(self))
        kind_policy(self.options, repr(self), is_coroutine=True, default_retry=ONCE)

    def __repr__(self) -> str:
        return f"Kind({getattr(self.arguments, '__qualname__', self.arguments)})"
