"""The items of batches: what a task function with `batch=Batch(...)` takes, and which names templates over one item may
use.

Such a function takes a list, and its callers enqueue one item of it. Templates (`by`, `key`, `title`) are over the
fields of the item; `{item}` is the item itself.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping
from typing import Any, Final, Union, get_args, get_origin, is_typeddict

import msgspec

from synergon.errors import OptionError
from synergon.options.argument_template import Parameters

ITEM: Final = "item"
"""The name of the item itself in templates. A field of the item with this name takes precedence."""


def item_type(kind: str, name: str, hint: Any) -> Any:
    """The type of the items in a parameter that is annotated as a list. Raises OptionError for any other annotation."""
    if hint is list:
        return Any
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        return item
    shown = "no annotation" if hint is Any else f"the annotation {_shown(hint)}"
    raise OptionError(
        f"task {kind!r} has batch=, so its function takes a list of items, but its parameter {name!r} has {shown}; "
        f"write {name}: list[...]"
    )


def item_result_type(kind: str, hint: Any) -> Any:
    """The type of one item's result, of a function that returns None or a list. Raises OptionError for any other
    annotation."""
    if hint is Any or hint is inspect.Signature.empty or hint is list:
        return Any
    if hint is None or hint is types.NoneType:
        return None
    if get_origin(hint) is list:
        return get_args(hint)[0] | None
    if get_origin(hint) in (Union, types.UnionType):
        lists = [part for part in get_args(hint) if part is not types.NoneType]
        if len(lists) == 1:
            return item_result_type(kind, lists[0])
    raise OptionError(
        f"task {kind!r} has batch=, so its function returns None or a list with a result for each item, but it is "
        f"annotated with {_shown(hint)}"
    )


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)


def item_parameters(item: Any) -> Parameters | None:
    """The names that templates over an item of this type may use, with the defaults of fields. None if its type does
    not say which fields it has."""
    if item is Any or item is object or item is dict or get_origin(item) in (dict, Mapping, Union, types.UnionType):
        return None
    found = {ITEM: _parameter(ITEM)}
    for name, default in _fields(item).items():
        found[name] = _parameter(name, default)
    return found


def _parameter(name: str, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _fields(item: Any) -> dict[str, Any]:
    """The fields of the type, each with its default if that is a plain value."""
    nothing = inspect.Parameter.empty
    if isinstance(item, type) and issubclass(item, msgspec.Struct):
        return {
            field.name: nothing if field.default is msgspec.NODEFAULT else field.default
            for field in msgspec.structs.fields(item)
        }
    if dataclasses.is_dataclass(item):
        return {
            field.name: nothing if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(item)
        }
    if is_typeddict(item):
        return dict.fromkeys(item.__annotations__, nothing)
    return dict.fromkeys(getattr(item, "model_fields", {}), nothing)  # a pydantic model, or a type without fields


def item_values(item: Any) -> dict[str, Any]:
    """The values that templates over this item use."""
    if isinstance(item, Mapping):
        return {ITEM: item, **{str(name): value for name, value in item.items()}}
    return {ITEM: item, **{name: getattr(item, name) for name in _fields(type(item))}}
