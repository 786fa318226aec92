"""Encodes arguments and results as JSON, and decodes them by the annotations of the task function.

Encoded arguments are decoded and validated at once, so a payload that is accepted when it is enqueued is also accepted
when the task runs. Nothing is pickled, and no name from a database is imported.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, get_type_hints

import msgspec

from synergon.errors import ConfigurationError, OptionError, PayloadError
from synergon.model.record import READ_ERRORS
from synergon.options.batch_items import item_parameters, item_result_type, item_type, item_values
from synergon.options.dependency_options import ReferenceFoundError, ResultReference, references_in
from synergon.options.json_types import with_article
from synergon.policies import PAYLOAD_LIMIT_BYTES

_NAMED: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def _encode_custom(value: Any) -> Any:
    if isinstance(value, ResultReference):
        raise ReferenceFoundError(value.unknown_text)
    if hasattr(value, "model_dump"):  # a pydantic model
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"{with_article(type(value).__qualname__)} cannot be JSON")


def _decode_custom(wanted: type, value: Any) -> Any:
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    if wanted is object:
        return value
    if issubclass(wanted, PurePath):
        return wanted(value)
    raise NotImplementedError(f"{with_article(wanted.__qualname__)} cannot be made from JSON")


_plain: Final = msgspec.json.Decoder()
_encoder: Final = msgspec.json.Encoder(enc_hook=_encode_custom)


def encode(value: Any, what: str, *, is_checked_later: bool = False) -> bytes:
    """Encode `value` as JSON. Raises a PayloadError that names `what` if it cannot be JSON, or has too many bytes."""
    try:
        encoded = _encoder.encode(value)
    except ReferenceFoundError as error:
        raise ReferenceFoundError(f"{what}: {error}") from None
    except (TypeError, NotImplementedError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise PayloadError(f"{what} cannot be JSON: {error}") from error
    if not is_checked_later:
        _check_json(encoded, what)
    if len(encoded) > PAYLOAD_LIMIT_BYTES:
        raise PayloadError(
            f"{what} has {len(encoded)} bytes as JSON, more than the limit of {PAYLOAD_LIMIT_BYTES}; "
            "store it elsewhere and pass a reference"
        )
    # NaN and infinity become null in JSON, which would be noticed only by the reader.
    if b"null" in encoded and not _is_finite(msgspec.to_builtins(value, enc_hook=_encode_custom)):
        raise PayloadError(f"{what} cannot be JSON: it holds NaN or infinity; pass None or text instead")
    return encoded


def _is_finite(value: Any) -> bool:
    """Whether no number in the value is NaN or infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_finite(part) for part in value.values())
    return not isinstance(value, list | tuple | set | frozenset) or all(_is_finite(part) for part in value)


def _check_json(encoded: bytes, what: str) -> None:
    """Check that the encoded value is JSON. The encoder does not check a `msgspec.Raw`, and readers of the task would
    fail."""
    try:
        _plain.decode(encoded)
    except msgspec.DecodeError as error:
        raise PayloadError(f"{what} cannot be JSON: {error}") from error


References = dict[str, dict[int | None, ResultReference]]
"""The results of steps in arguments, by name of the argument and index of the item; None for a whole argument."""


def encode_with_references(arguments: Mapping[str, Any], what: str) -> tuple[bytes, References]:
    """Encode arguments without the results of steps in them. Returns the JSON, and the references by argument."""
    found = {name: dict(references_in(value)) for name, value in arguments.items()}
    references = {name: by_index for name, by_index in found.items() if by_index}
    known = {name: _without(value, found[name]) for name, value in arguments.items() if None not in found[name]}
    try:
        return encode(known, what), references
    except ReferenceFoundError:
        raise PayloadError(
            f"{what} holds the result of a step inside of a value; such a result can only be a whole argument or an "
            "item of a list"
        ) from None


def _without(value: Any, references: Mapping[int | None, ResultReference]) -> Any:
    """The argument, with null for the items that are results of steps."""
    return [None if index in references else item for index, item in enumerate(value)] if references else value


def with_results(payload: bytes, whole: Mapping[str, Any], items: Mapping[str, Mapping[int, Any]]) -> bytes:
    """Put results into a payload. `whole` has the results that are whole arguments, `items` those that are items of
    lists, by index. All are JSON."""
    arguments = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    arguments.update(whole)
    for name, by_index in items.items():
        values = msgspec.json.decode(arguments[name], type=list[msgspec.Raw])
        for index, value in by_index.items():
            values[index] = value
        arguments[name] = msgspec.Raw(msgspec.json.encode(values))
    return msgspec.json.encode(arguments)


class Signature:
    """Converts the arguments and the result of one task function to JSON and back."""

    def __init__(
        self, function: Callable[..., Any], kind: str, injected_types: frozenset[type], *, is_batch: bool = False
    ) -> None:
        """`is_batch`: the function takes a list, and its payloads and results are those of one item."""
        self._kind = kind
        self.list_name: str | None = None
        """The parameter that takes the list of items, if the function runs batches. A payload has one item of it."""
        self._payload = f"the payload of task {kind!r}"
        hints = _hints(function, kind)
        self.injected: dict[str, type] = {}
        fields: list[tuple[str, Any, Any]] = []
        self._names: list[str] = []
        self._hints: dict[str, Any] = {}
        self._required: set[str] = set()
        self._keyword_only: set[str] = set()
        self._positional_only: dict[str, Any] = {}
        """The default of each positional-only parameter."""
        self.parameters: Final = inspect.signature(function).parameters
        """All parameters of the function, including those that synergon fills in."""
        for name, parameter in self.parameters.items():
            hint = hints.get(name, Any)
            if parameter.kind not in _NAMED:
                raise ConfigurationError(
                    f"task {kind!r} takes {parameter}: a payload needs named arguments, so give each one a name"
                )
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                self._positional_only[name] = parameter.default
            if any(hint is wanted for wanted in injected_types):  # not `in`: an annotation need not have a hash
                self.injected[name] = hint
                continue
            if is_batch:
                hint = self._item_type(name, hint)
            self._add(name, parameter)
            self._hints[name] = hint
            fields.append((name, hint, msgspec.UNSET) if name not in self._required else (name, hint, ...))
        if is_batch and self.list_name is None:
            raise OptionError(f"task {kind!r} has batch=, so its function takes a list of items; add that parameter")
        self.template_parameters: Mapping[str, inspect.Parameter] | None = (
            item_parameters(fields[0][1]) if is_batch else self.parameters
        )
        """The parameters that templates may name. None if the type of the items does not say which fields they have."""
        self._arguments = _struct(kind, fields)
        self._decoder = _decoder(self._arguments, f"the annotations of task {kind!r}")
        self._has_optional = len(self._required) < len(self._names)
        self._most_positional = len(self._names) - len(self._keyword_only)
        returned = hints.get("return", Any)
        self._result_type = item_result_type(kind, returned) if is_batch else _result_type(returned)
        self._result_decoder = _decoder(self._result_type, f"the result of task {kind!r}")
        self._reject_unknown_types(fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments in a payload."""
        return tuple(self._names)

    @property
    def required(self) -> frozenset[str]:
        """The names of the arguments that have no default."""
        return frozenset(self._required)

    def _item_type(self, name: str, hint: Any) -> Any:
        if self.list_name is not None:
            raise OptionError(
                f"task {self._kind!r} has batch=, so its function takes one list of items, but it takes {name!r} too; "
                "make it a field of the items"
            )
        self.list_name = name
        return item_type(self._kind, name, hint)

    def _add(self, name: str, parameter: inspect.Parameter) -> None:
        self._names.append(name)
        if parameter.default is inspect.Parameter.empty:
            self._required.add(name)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            self._keyword_only.add(name)

    def _reject_unknown_types(self, fields: list[tuple[str, Any, Any]]) -> None:
        holders = [(f"argument {name!r}", hint) for name, hint, _ in fields]
        for holder, hint in [*holders, ("the result", self._result_type)]:
            for custom in _custom_types(hint):
                raise ConfigurationError(
                    f"{holder} of task {self._kind!r} holds {custom.__qualname__}, which cannot be JSON; "
                    "use a dataclass, TypedDict, msgspec Struct, pydantic model or a plain type"
                )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, Any]:
        """The arguments as JSON, and as a struct that was decoded from it. Raises PayloadError if they do not match the
        signature."""
        bound = self._bound(args, kwargs)
        payload = encode(bound, self._payload, is_checked_later=True)
        return payload, self._validated(payload)

    def bind_with_references(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, Any], References]:
        """Like `bind`, for arguments that hold results of steps: the payload and the arguments without those, and
        where the results belong. The payload has null for an item of a list that is a result."""
        bound = self._bound(args, kwargs)
        payload, references = encode_with_references(bound, self._payload)
        return payload, self._checked({name: bound[name] for name in bound if name not in references}), references

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Some of the arguments, decoded from JSON by their annotations."""
        fields: list[tuple[str, Any, Any]] = [(name, self._hints[name], ...) for name in arguments]
        decoder = _decoder(_struct(self._kind, fields), self._payload)
        try:
            decoded: dict[str, Any] = msgspec.structs.asdict(decoder.decode(encode(arguments, self._payload)))
        except READ_ERRORS as error:
            raise PayloadError(f"{self._payload} does not fit its signature: {error}") from error
        return decoded

    @property
    def arguments_type(self) -> type[msgspec.Struct]:
        """The struct that arguments are decoded to. The HTTP API makes a JSON Schema of it."""
        return self._arguments

    def hint(self, name: str) -> Any:
        """The annotation of an argument."""
        return self._hints[name]

    @property
    def result_type(self) -> Any:
        """The annotation of the result."""
        return self._result_type

    @property
    def first_name(self) -> str:
        """The name of the first argument. Raises PayloadError if there is none."""
        if not self._names:
            raise PayloadError(f"task {self._kind!r} takes no argument")
        return self._names[0]

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name. Raises PayloadError if there are too many, too few or unknown ones."""
        if len(args) > self._most_positional:
            raise self._misfit(f"takes {self._most_positional} positional arguments, got {len(args)}")
        bound = dict(zip(self._names, args, strict=False))
        if kwargs:
            for name in kwargs:
                if name in bound:
                    raise self._misfit(f"got two values for {name!r}")
                if name not in self._names:
                    raise self._misfit(f"has no argument {name!r}")
            bound.update(kwargs)
        if len(bound) < len(self._names):
            missing = sorted(self._required - bound.keys())
            if missing:
                raise self._misfit(f"needs {', '.join(missing)}")
        return bound

    def _misfit(self, what: str) -> PayloadError:
        return PayloadError(f"task {self._kind!r} {what}; it takes ({', '.join(self._names)})")

    def take_positional(self, arguments: dict[str, Any]) -> list[Any]:
        """Remove the positional-only arguments from `arguments`, and return them. Missing ones have their defaults."""
        if not self._positional_only:
            return []
        return [arguments.pop(name, default) for name, default in self._positional_only.items()]

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Decode and validate the arguments. Raises PayloadError if they do not match the signature."""
        return self.as_dict(self._validated(payload))

    def plain(self, payload: bytes) -> dict[str, Any]:
        """The arguments as plain JSON values, not checked against the signature. Empty if the payload is no JSON
        object."""
        try:
            values = _plain.decode(payload)
        except (msgspec.MsgspecError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def as_dict(self, arguments: Any) -> dict[str, Any]:
        """The arguments of a struct by name, without those that the call left out."""
        values = msgspec.structs.asdict(arguments)
        if self._has_optional:
            return {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return values

    def template_values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The values that templates may use, by name: the decoded arguments, or the fields of the item if the kind has
        batches."""
        return dict(arguments) if self.list_name is None else item_values(arguments[self.list_name])

    def join_items(self, items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The arguments of a function that runs batches, from the decoded arguments of its items."""
        name = self.list_name
        assert name is not None, "only batches have items"
        return {name: [item[name] for item in items]}

    def _validated(self, payload: bytes) -> Any:
        try:
            return self._decoder.decode(payload)
        except READ_ERRORS as error:  # or a pydantic model rejects it
            raise PayloadError(f"{self._payload} does not fit its signature: {error}") from error

    def encode_result(self, value: Any) -> bytes:
        """Encode the result of the task function as JSON."""
        return encode(value, f"the result of task {self._kind!r}") if value is not None else b"null"

    def decode_result(self, result: bytes) -> Any:
        """Decode a result to the type of the function's annotation. Raises PayloadError if it does not match."""
        try:
            return self._result_decoder.decode(result)
        except READ_ERRORS as error:
            raise PayloadError(f"the result of task {self._kind!r} does not fit its annotation: {error}") from error


def _hints(function: Callable[..., Any], kind: str) -> dict[str, Any]:
    if not hasattr(function, "__qualname__"):  # a partial, or a callable object
        raise ConfigurationError(f"task {kind!r} is no function but {function!r}; write one that calls it")
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"an annotation of task {kind!r} names something that is not defined yet: {error}; "
            "define the type above the task"
        ) from error
    except TypeError as error:  # for instance for `"Order" | None`
        raise ConfigurationError(f"an annotation of task {kind!r} cannot be evaluated: {error}") from error


def _struct(kind: str, fields: list[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    definitions: list[Any] = [
        (name, hint) if default is ... else (name, hint | msgspec.UnsetType if _can_unite(hint) else hint, default)
        for name, hint, default in fields
    ]
    try:
        return msgspec.defstruct(
            "Arguments",
            definitions,
            forbid_unknown_fields=True,
            kw_only=True,
            module=__name__,
            namespace={"__doc__": kind},
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the annotations of task {kind!r} cannot be JSON: {error}") from error


def _can_unite(hint: Any) -> bool:
    return hint is not Any


def _result_type(hint: Any) -> Any:
    """The return type of the function. Any JSON value if it has no annotation."""
    return Any if hint is inspect.Signature.empty else hint


def _decoder(hint: Any, what: str) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(hint, dec_hook=_decode_custom)
    except TypeError as error:
        raise ConfigurationError(f"{what} cannot be JSON: {error}") from error


def _is_convertible(wanted: type) -> bool:
    """Whether `_decode_custom` makes values of this type."""
    return wanted is object or hasattr(wanted, "model_validate") or issubclass(wanted, PurePath)


def _custom_types(hint: Any) -> Iterator[type]:
    """The types in an annotation that JSON does not support."""
    try:
        info: Any = msgspec.inspect.type_info(hint)
    except TypeError:
        return
    seen: set[int] = set()
    todo = [info]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, msgspec.inspect.CustomType) and not _is_convertible(node.cls):
            yield node.cls
        if isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
            todo.extend(getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple):
            todo.extend(node)
