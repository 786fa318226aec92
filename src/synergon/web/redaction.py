"""Redaction: hides secrets in arguments, results, metadata and errors before a document leaves the process.

A value is hidden if its name says so (`password`, `api_key`, ...), if its annotation has `Secret()`, or if `redact` of
its kind names it. A value whose annotation is not understood is hidden as a whole. Where the code of a kind is not
imported, its annotations are not known, and all its arguments and results are hidden. A hidden text is also replaced
where it occurs in other values of the task.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, ForwardRef, Literal, NewType, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from synergon.model.task_records import TaskRecord
from synergon.policies import Secret
from synergon.task import AnyTask
from synergon.web.json_text import encode

REDACTED: Final = "[redacted]"

SECRET_WORDS: Final = frozenset(
    {
        *("password", "passwd", "pwd", "passphrase", "passcode", "token", "secret", "authorization", "credential"),
        *("cookie", "apikey", "auth", "oauth", "jwt", "bearer", "signature", "sessionid"),
    }
)
"""A name that contains one of these words, or its plural, is the name of a secret."""

SECRET_ENDS: Final = ("password", "passwd", "passphrase", "passcode", "token", "secret", "credential", "apikey")
"""A name with a word that ends in one of these, such as `dbpassword`, is the name of a secret."""

SECRET_PAIRS: Final = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("session", "id"), ("session", "key")}
)

LEAST_REPLACED: Final = 4
"""Hidden texts that are shorter are not replaced within other texts, where they occur by chance. A value that equals
one is hidden."""

LEAST_NUMBER: Final = 100_000
"""Hidden numbers that are smaller are not replaced within texts. A value that equals one is hidden."""

MOST_REPLACED: Final = 1000
"""How many hidden texts of one task are looked for in its other texts."""

DEEPEST_TYPE: Final = 50
"""How deeply annotations are nested at most."""

PLAIN_MODULES: Final = frozenset(
    {"builtins", "collections", "collections.abc", "datetime", "decimal", "pathlib", "typing", "uuid"}
)
"""The modules whose classes have no fields with annotations."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_NAMES: Final = (
    "pass(?:word|wd|phrase|code)|pwd|token|secret|authorization|credentials?|cookie|api[_-]?key|"
    r"(?:access|private)[_-]?key|session[_-]?id|signature|\b(?:auth|jwt)(?![a-z])"
)
_VALUE: Final = r"""(?:bearer|basic)\s+\S+|"[^"\n]*"|'[^'\n]*'|[^\s,;&)}\]]+"""
_ASSIGNED: Final = re.compile(
    rf"""(?i)((?:{_NAMES})[\w-]{{0,40}}["']?\s{{0,5}}[:=]\s{{0,5}})(?!\[redacted\])({_VALUE})"""
)
"""In a text: a name like `password`, then : or =, then a value."""
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_USERINFO: Final = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+@")
"""A password in a URL."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str, *, is_number: bool = False) -> bool:
    """Whether a value of this name is a secret. `is_number`: the value is a number. A plural then names a count, which
    is no secret: `max_tokens`."""
    words = [word.lower() for word in _WORD.findall(name)]
    for word in words if is_number else [*words, *(word.removesuffix("s") for word in words)]:
        if word in SECRET_WORDS or word.endswith(SECRET_ENDS):
            return True
    return any(pair in SECRET_PAIRS for pair in itertools.pairwise(words))


def redacted_text(text: str) -> str:
    """The text without values that follow a name like `password`, and without passwords in URLs."""
    text = _ASSIGNED.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    return _USERINFO.sub(rf"\1:{REDACTED}@", text)


@dataclass(frozen=True, slots=True)
class KindSecrets:
    """The secrets of the tasks of one kind, beside names that are secret in all kinds."""

    names: frozenset[str] = frozenset()
    """Arguments and fields that are hidden, at any depth."""
    hides_arguments: bool = False
    hides_result: bool = False

    @classmethod
    def of(cls, task_type: AnyTask | None) -> KindSecrets:
        """The secrets of a kind. If `task_type` is None, the code of the kind is not imported, and everything is
        hidden."""
        if task_type is None or task_type.policy.redact is True:
            return cls(hides_arguments=True, hides_result=True)
        signature = task_type.signature
        names = set(task_type.policy.redact or ())
        for name in signature.names:
            fields = _secret_fields(signature.hint(name))
            names |= {name} if fields is None else fields
        fields = _secret_fields(signature.result_type)
        return cls(frozenset(names | (fields or set())), hides_result=fields is None)


def _secret_fields(hint: Any) -> set[str] | None:
    """The names in JSON of the fields below an annotation that have `Secret()`. None if the value is hidden as a
    whole: it is a secret itself, its secrets have no names in JSON, or a part of the annotation is not understood."""
    try:
        return None if _is_marked(hint) else _marked_fields(hint)
    except Exception:  # noqa: BLE001 - whatever the annotations of the application raise
        return None


class _UnclearError(Exception):
    """Raised if it is not known where the secrets of a type are in JSON."""


def _parts(hint: Any) -> tuple[Any, ...]:
    """The parts of an annotation: the arguments of a generic type, and the type that an alias stands for."""
    if isinstance(hint, str | ForwardRef):
        raise _UnclearError
    named = get_origin(hint) or hint
    aliased: list[Any] = []
    if type(named).__name__ == "TypeAliasType":  # of `type Pin = ...`, from typing or typing_extensions
        aliased = [named.__value__]
    elif isinstance(named, NewType):
        aliased = [named.__supertype__]
    elif isinstance(named, TypeVar):
        aliased = [*named.__constraints__, *([] if named.__bound__ is None else [named.__bound__])]
    if get_origin(hint) is Literal:
        return ()
    return (*aliased, *get_args(hint))


def _is_marked(hint: Any, depth: int = 0) -> bool:
    """Whether the annotation has `Secret()`, by itself or as a part of a union, a container or an alias."""
    if depth > DEEPEST_TYPE:  # an alias of itself
        return False
    if get_origin(hint) is Annotated:
        first, *marks = get_args(hint)
        return any(isinstance(mark, Secret) or mark is Secret for mark in marks) or _is_marked(first, depth + 1)
    return any(_is_marked(part, depth + 1) for part in _parts(hint) if part is not ...)


def _marked_fields(hint: Any) -> set[str]:
    """The names in JSON of the fields with `Secret()` in the types of the annotation."""
    names: set[str] = set()
    todo, seen = [hint], list[Any]()
    while todo:
        one = todo.pop()
        if any(one is other for other in seen):
            continue
        seen.append(one)
        if get_origin(one) is Annotated:
            todo.append(get_args(one)[0])
            continue
        todo.extend(part for part in _parts(one) if part is not ...)
        kind = get_origin(one) or one
        if isinstance(kind, type) and kind.__module__ not in PLAIN_MODULES:
            for name, field in _fields(kind):
                todo.append(field)
                if _is_marked(field):
                    names |= _json_names(kind, name)
    return names


def _fields(kind: type) -> Iterator[tuple[str, Any]]:
    """The fields of a class, with their annotations."""
    hints = get_type_hints(kind, include_extras=True)
    models = _model_fields(kind)
    if models is None:
        yield from hints.items()
        return
    for name, field in models.items():
        yield name, hints.get(name, Any)
        # Of a generic model, the annotation above is a type variable.
        yield name, Annotated[field.annotation, *(field.metadata or [None])]


def _model_fields(kind: type) -> Mapping[str, Any] | None:
    """The fields of a class of pydantic. None for another class."""
    found: Mapping[str, Any] | None = getattr(kind, "__pydantic_fields__", None) or getattr(kind, "model_fields", None)
    return found


def _json_names(kind: type, name: str) -> set[str]:
    """The names that a field has in JSON. Raises _UnclearError if it has none."""
    if issubclass(kind, msgspec.Struct) and not kind.__struct_config__.array_like:
        return {name, *(field.encode_name for field in msgspec.structs.fields(kind) if field.name == name)}
    models = _model_fields(kind)
    if models is not None and not getattr(kind, "__pydantic_root_model__", False):
        field = models[name]
        aliases = {field.alias, field.serialization_alias, field.validation_alias} - {None}
        if all(isinstance(alias, str) for alias in aliases):
            return {name, *aliases}
    elif dataclasses.is_dataclass(kind) or hasattr(kind, "__required_keys__") or hasattr(kind, "__attrs_attrs__"):
        return {name}
    raise _UnclearError


class Redactor:
    """Makes documents of records, without secrets."""

    def __init__(self, kinds: Mapping[str, AnyTask]) -> None:
        self._kinds = kinds
        self._secrets: dict[str, tuple[AnyTask | None, KindSecrets]] = {}

    def of_kind(self, kind: str) -> KindSecrets:
        """The secrets of the tasks of a kind."""
        task_type = self._kinds.get(kind)
        known = self._secrets.get(kind)
        if task_type is None:
            return KindSecrets.of(None)
        if known is None or known[0] is not task_type:
            known = self._secrets[kind] = (task_type, KindSecrets.of(task_type))
        return known[1]

    def task(self, record: TaskRecord) -> dict[str, Any]:
        """A task as plain JSON values, without secrets. `redacted` names the fields that are hidden as a whole."""
        return self._redacted(record)[0]

    def about_task(self, record: TaskRecord, document: Any) -> Any:
        """A document about a task, such as its explanation, without the secrets of the task."""
        return _with_texts(_hidden(document, frozenset(), _Found()), self._redacted(record)[1].cleaned)

    def _redacted(self, record: TaskRecord) -> tuple[dict[str, Any], _Found]:
        """The task without secrets, and the texts that were hidden."""
        try:
            return _redact(record.as_dict(), self.of_kind(record.kind))
        except RecursionError:  # nested too deeply to look into it
            values, found = _redact(record.as_dict() | {"meta": {}}, KindSecrets.of(None))
            return values, found

    def arguments(self, kind: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments of a kind without secrets. None if all are hidden."""
        secrets, found = self.of_kind(kind), _Found()
        if secrets.hides_arguments:
            return None
        shown: dict[str, Any] = _with_texts(_hidden(arguments, secrets.names, found), found.cleaned)
        return shown

    def title(self, kind: str, title: str | None) -> str | None:
        """The title of a task whose arguments are not at hand. None if it may contain a secret."""
        task_type = self._kinds.get(kind)
        if title is None or task_type is None or self.of_kind(kind).hides_arguments:
            return None
        secrets = self.of_kind(kind).names
        template = task_type.policy.title
        names = task_type.title_template(template).names if template is not None else task_type.signature.names
        return None if any(name in secrets or is_secret_name(name) for name in names) else title

    def message(self, kind: str, message: str) -> str | None:
        """The message of an error of a task whose arguments are not at hand. None if it may contain a secret."""
        task_type, secrets = self._kinds.get(kind), self.of_kind(kind)
        if task_type is None or secrets.hides_arguments or secrets.names:
            return None
        return None if any(map(is_secret_name, task_type.signature.names)) else redacted_text(message)


def _redact(values: dict[str, Any], secrets: KindSecrets) -> tuple[dict[str, Any], _Found]:
    found = _Found()
    hidden: list[str] = []

    def hide(name: str, *, is_hidden: bool) -> None:
        if is_hidden and values[name] is not None:
            found.add(values[name])
            values[name] = None
            hidden.append(name)
        else:
            values[name] = _hidden(values[name], secrets.names, found)

    hide("arguments", is_hidden=secrets.hides_arguments)
    hide("meta", is_hidden=False)
    values["arguments"] = _with_texts(values["arguments"], found.cleaned)
    hide("result", is_hidden=secrets.hides_result)
    for name in ("result", "meta"):
        values[name] = found.without(values[name])
    for name in ("title", "key", "limit_key", "fair_key", "tags"):
        values[name] = _with_texts(values[name], found.replaced)
    for name in ("errors", "attempts_made", "progress"):
        values[name] = _with_texts(values[name], found.cleaned)
    return values | {"redacted": hidden}, found


def hide_secrets(value: Any) -> Any:
    """A JSON value that belongs to no kind, without the values of secret names and without secrets in its texts."""
    return _with_texts(_hidden(value, frozenset(), _Found()), redacted_text)


class _Found:
    """The values that were hidden in a task. They are replaced where they occur in its other values, too."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._texts: set[str] = set()

    def add(self, value: Any) -> None:
        """Note all texts and numbers in a hidden value."""
        for one in _leaves(value):
            text = str(one)
            self._values.add(text)
            is_rare = len(text) >= LEAST_REPLACED if isinstance(one, str) else abs(one) >= LEAST_NUMBER
            if is_rare and len(self._texts) < MOST_REPLACED:
                # As it is, and as it stands in the text of a Python value and of JSON.
                self._texts |= {text, repr(text)[1:-1], json.dumps(text)[1:-1], encode(text).decode()[1:-1]}

    def replaced(self, text: str) -> str:
        """The text, in which hidden texts are replaced."""
        if text in self._values:
            return REDACTED
        for hidden in sorted(self._texts, key=len, reverse=True):
            text = text.replace(hidden, REDACTED)
        return text

    def cleaned(self, text: str) -> str:
        """The text, in which hidden texts, and values that follow a name like `password`, are replaced."""
        return redacted_text(self.replaced(text))

    def without(self, value: Any) -> Any:
        """A JSON value, in which hidden values are replaced, also in names."""
        if isinstance(value, dict):
            return {self.replaced(name): self.without(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.without(part) for part in value]
        if isinstance(value, str):
            return self.cleaned(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return REDACTED if is_number and str(value) in self._values else value


def _leaves(value: Any) -> Iterator[str | int | float]:
    """The texts and numbers in a JSON value."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo.extend(one.values())
        elif isinstance(one, list):
            todo.extend(one)
        elif isinstance(one, str | int | float) and not isinstance(one, bool) and one != "":
            yield one


def _hidden(value: Any, names: Iterable[str], found: _Found) -> Any:
    """The value, in which values of secret names are replaced, at any depth. `found` notes them."""
    if isinstance(value, dict):
        return {
            name: _replacement(part, found)
            if name in names or is_secret_name(name, is_number=isinstance(part, int | float))
            else _hidden(part, names, found)
            for name, part in value.items()
        }
    return [_hidden(part, names, found) for part in value] if isinstance(value, list) else value


def _replacement(value: Any, found: _Found) -> Any:
    """The replacement of a secret, which `found` notes. Null and booleans are no secrets and stay as they are."""
    if value is None or isinstance(value, bool):
        return value
    found.add(value)
    return REDACTED


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value with all its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _with_texts(part, change) for name, part in value.items()}
    return [_with_texts(part, change) for part in value] if isinstance(value, list) else value
