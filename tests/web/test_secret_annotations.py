"""What kinds declare as secret: annotations with `Secret()`, and the option `redact`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from tests.web.web_support import Card
from typing_extensions import TypeAliasType

from synergon import Engine, OptionError, Secret
from synergon.web.redaction import KindSecrets, Redactor, _secret_fields


@pytest.fixture
def url(memory_url: str) -> str:
    return memory_url


class Login(TypedDict):
    user: str
    pin: Annotated[int, Secret()]


class Wallet(msgspec.Struct):
    cards: list[Card]


class Model(pydantic.BaseModel):
    code: Annotated[str, Secret()]


@dataclass
class Node:
    value: Annotated[str, Secret] | None
    next: Any = None


def test_annotations_mark_secrets_at_any_depth(engine: Engine) -> None:
    @engine.task
    async def every(
        login: Login, wallet: Wallet | None, model: Model, node: list[Node], own: Annotated[str | None, Secret()] = None
    ) -> dict[str, Card]:
        return {}

    found = KindSecrets.of(engine.kinds["every"])
    assert found == KindSecrets(frozenset({"pin", "number", "code", "value", "own"}))


Number = Annotated[str, Secret()]
Value = TypeVar("Value")
Alias = TypeAliasType("Alias", Number)
Numbers = TypeAliasType("Numbers", list[Number])
OfUser = NewType("OfUser", Number)


class Camel(msgspec.Struct, rename="camel"):
    card_number: Number
    holder: str = ""


class Row(msgspec.Struct, array_like=True):
    number: Number


class Pair(NamedTuple):
    number: Number


class WithAlias(pydantic.BaseModel):
    card: Number = pydantic.Field(alias="cardNumber")


class WithChoices(pydantic.BaseModel):
    card: Number = pydantic.Field(validation_alias=pydantic.AliasChoices("a", "b"))


class GenericModel(pydantic.BaseModel, Generic[Value]):
    value: Value


class Root(pydantic.RootModel[Number]): ...


@dataclass
class Box(Generic[Value]):
    inner: Value
    number: Number


@dataclass
class Unresolved:
    number: Number
    amount: NotDefined  # type: ignore[name-defined]  # noqa: F821


@dataclass
class OwnAlias:
    pin: Alias


class Plain:
    number: Number


@pytest.mark.parametrize(
    ("hint", "names"),
    [
        (Camel, {"card_number", "cardNumber"}),
        (list[Camel], {"card_number", "cardNumber"}),
        (WithAlias, {"card", "cardNumber"}),
        (Box[int], {"number"}),
        (Box[Camel] | None, {"number", "card_number", "cardNumber"}),
        (OwnAlias, {"pin"}),
        (GenericModel[Number], {"value"}),
        (GenericModel[int], set()),
        (Annotated[Camel, "about"], {"card_number", "cardNumber"}),
        (Literal["a", "b"], set()),
        (tuple[int, ...], set()),
        (dict[str, Any], set()),
        *((hint, None) for hint in (Alias, Numbers, OfUser, Row, list[Row], Pair, WithChoices, Root, Plain)),
        *((hint, None) for hint in (Unresolved, list[Unresolved], Box[Row], Box[Alias], list["Camel"])),
    ],
)
def test_what_is_not_understood_is_hidden_as_a_whole(hint: Any, names: set[str] | None) -> None:
    assert _secret_fields(hint) == names


def test_an_argument_or_result_that_is_not_understood_is_hidden(engine: Engine) -> None:
    async def convert(row: Row, camel: Camel, name: str) -> Pair:
        return Pair("x")

    task_type = engine.task(convert)
    names = {"row", "card_number", "cardNumber"}
    assert KindSecrets.of(task_type) == KindSecrets(frozenset(names), hides_result=True)
    shown = Redactor(engine.kinds).arguments(
        task_type.kind, {"row": ["4111"], "camel": {"cardNumber": "4111", "holder": "Ada"}, "name": "ada"}
    )
    assert shown == {"row": "[redacted]", "camel": {"cardNumber": "[redacted]", "holder": "Ada"}, "name": "ada"}


def test_a_kind_hides_names_or_everything(engine: Engine) -> None:
    @engine.task(redact=True)
    async def all_of_it(name: str) -> str:
        return name

    @engine.task(redact={"name"})
    async def some(name: str, other: str) -> str:
        return name

    assert KindSecrets.of(engine.kinds["all_of_it"]) == KindSecrets(hides_arguments=True, hides_result=True)
    assert KindSecrets.of(engine.kinds["some"]) == KindSecrets(frozenset({"name"}))
    redactor = Redactor(engine.kinds)
    assert redactor.arguments("all_of_it", {"name": "ada"}) is None
    assert redactor.arguments("some", {"name": "ada", "other": "bob"}) == {"name": "[redacted]", "other": "bob"}
    assert redactor.arguments("unknown", {"name": "ada"}) is None


@pytest.mark.parametrize("value", ["iban", 3, [""], [3]])
def test_a_wrong_redact_is_rejected(engine: Engine, value: Any) -> None:
    with pytest.raises(OptionError, match="redact"):

        @engine.task(redact=value)
        async def wrong() -> None: ...
