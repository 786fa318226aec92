"""Which JSON types an annotation allows: enough to see that a result can never fit an argument."""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect

ANY: Final = frozenset({"null", "boolean", "number", "text", "list", "object"})

_NAMES: Final[tuple[tuple[str, tuple[type, ...]], ...]] = (
    ("null", (inspect.NoneType,)),
    ("boolean", (inspect.BoolType,)),
    ("number", (inspect.IntType, inspect.FloatType)),
    (
        "text",
        (
            inspect.StrType,
            inspect.BytesType,
            inspect.ByteArrayType,
            inspect.DateTimeType,
            inspect.DateType,
            inspect.TimeType,
            inspect.TimeDeltaType,
            inspect.UUIDType,
            inspect.DecimalType,
        ),
    ),
    ("list", (inspect.CollectionType, inspect.TupleType, inspect.NamedTupleType)),
    ("object", (inspect.DictType, inspect.TypedDictType, inspect.DataclassType)),
)


def json_types(hint: Any) -> frozenset[str]:
    """The JSON types that values of this annotation have; all of them if that is not known."""
    return _types(_info(hint))


def item_types(hint: Any) -> frozenset[str]:
    """The JSON types that the items of a list with this annotation have."""
    info = _info(hint)
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    found: frozenset[str] = frozenset()
    for part in parts:
        if isinstance(part, inspect.CollectionType):
            found |= _types(part.item_type)
        elif isinstance(part, inspect.TupleType):
            found = found.union(*map(_types, part.item_types))
        elif "list" in _types(part):
            return ANY
    return found


def _info(hint: Any) -> inspect.Type:
    try:
        return inspect.type_info(hint)
    except TypeError:
        return inspect.AnyType()


def _types(info: inspect.Type) -> frozenset[str]:
    if isinstance(info, inspect.Metadata):
        return _types(info.type)
    if isinstance(info, inspect.UnionType):
        return frozenset[str]().union(*map(_types, info.types))
    if isinstance(info, inspect.LiteralType):
        return frozenset("text" if isinstance(value, str) else "number" for value in info.values)
    if isinstance(info, inspect.EnumType):
        return frozenset("text" if isinstance(member.value, str) else "number" for member in info.cls)
    if isinstance(info, inspect.StructType):
        return frozenset({"list" if info.array_like else "object"})
    for name, types in _NAMES:
        if isinstance(info, types):
            return frozenset({name})
    return ANY


def text_of(types: frozenset[str]) -> str:
    """The names of the types, for a message."""
    return " or ".join(sorted(types))


def describe(hint: Any) -> str:
    """The annotation as it is written."""
    is_plain = isinstance(hint, type) and not hasattr(hint, "__origin__")
    return hint.__name__ if is_plain else str(hint).replace("typing.", "")


def with_article(noun: str) -> str:
    """The noun with its article, for a message: an int, a list."""
    return f"{'an' if noun[:1].lower() in {*'aeio'} else 'a'} {noun}"
