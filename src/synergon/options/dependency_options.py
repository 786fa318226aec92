"""The options of a call that concern other tasks: `after`, and the results of steps that stand for arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import msgspec

from synergon.errors import OptionError, PayloadError
from synergon.model.dependencies import Need

IfDependencyFails = Literal["cancel", "run"]
"""What happens to a task if one of its dependencies does not succeed."""


class TaskReference:
    """An object that stands for a task in `after`: a handle, or a step of a flow."""

    __slots__ = ()

    def _need_of(self, url: str | None) -> Need:
        """The dependency on the task that this object stands for. `url` is the database of the task that needs it, or
        None if that is not known."""
        raise NotImplementedError


After = tuple[TaskReference | int, ...]
"""The checked option `after`."""


def check_after(value: Any) -> After:
    """Check a list of handles, steps or ids."""
    if isinstance(value, str | bytes | TaskReference) or not isinstance(value, Iterable):
        raise OptionError(f"after must be a list of handles, steps or task ids, got {value!r}")
    found = tuple(value)
    for entry in found:
        is_id = isinstance(entry, int) and not isinstance(entry, bool) and 0 < entry < 2**63
        if not is_id and not isinstance(entry, TaskReference):
            raise OptionError(f"after must be a list of handles, steps or task ids, got {entry!r} in it")
    return found


def needs_of(after: After, url: str | None) -> tuple[Need, ...]:
    """The dependencies of a task with this `after`, which is stored in the database at `url`. Raises OptionError for a
    task of another database."""
    return tuple(need_of(entry, url) for entry in after)


def need_of(entry: TaskReference | int, url: str | None) -> Need:
    """The dependency that one entry of `after` stands for: a handle, or the id of a task."""
    return Need(task_id=entry) if isinstance(entry, int) else entry._need_of(url)  # noqa: SLF001  not for users


# ---------------------------------------------------------------- results as arguments


class StoredReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of an argument, or of an item of one: the result of a dependency."""

    position: int
    """The position of the dependency among those of the task."""
    is_list: bool = False
    """Whether the value is the list of the results of a map's items."""


class ReferenceFoundError(PayloadError):
    """A value holds the result of a step, so it cannot be encoded."""


class ResultReference:
    """The result of a step that has not run yet. It stands for a whole argument of a later step, or for an item of a
    list. Anything else raises PayloadError at once."""

    __slots__ = ("_step", "is_list")

    def __init__(self, step: Any, *, is_list: bool = False) -> None:
        self._step = step
        self.is_list: Final = is_list

    def __repr__(self) -> str:
        return f"<{self._name}>"

    @property
    def _name(self) -> str:
        return f"result{'s' if self.is_list else ''} of step {self._step.name}"

    @property
    def unknown_text(self) -> str:
        """The text of the error: why the result cannot be used as a value, and what to do instead."""
        return (
            f"the {self._name} is not known before the flow runs; pass it as a whole argument of a later step, or as "
            "an item of a list, and look into it in that task function"
        )

    def _reject(self, *_: Any, **__: Any) -> NoReturn:
        raise PayloadError(self.unknown_text)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what libraries look for
            raise AttributeError(name)
        self._reject()

    if not TYPE_CHECKING:  # a type checker sees the type of the result itself
        __getitem__ = __setitem__ = __delitem__ = __len__ = __bool__ = __contains__ = __call__ = __hash__ = _reject
        __iter__ = __next__ = __reversed__ = __await__ = __aiter__ = __anext__ = _reject
        __str__ = __format__ = __int__ = __float__ = __complex__ = __index__ = __bytes__ = _reject
        __neg__ = __pos__ = __invert__ = __abs__ = __round__ = __trunc__ = __floor__ = __ceil__ = _reject
        __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = _reject
        __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = _reject
        __pow__ = __lshift__ = __rshift__ = __and__ = __or__ = __xor__ = _reject
        __rpow__ = __rlshift__ = __rrshift__ = __rand__ = __ror__ = __rxor__ = _reject
        __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _reject


def step_of(reference: ResultReference) -> Any:
    """The step to whose result this refers."""
    return object.__getattribute__(reference, "_step")


def references_in(value: Any) -> Iterator[tuple[int | None, ResultReference]]:
    """Yield the references in an argument, each with its index in the list. The index is None if the argument itself is
    a reference."""
    if isinstance(value, ResultReference):
        yield None, value
    elif isinstance(value, list | tuple):
        yield from ((index, item) for index, item in enumerate(value) if isinstance(item, ResultReference))
