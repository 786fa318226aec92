"""Arguments and results: what can be passed, and that it arrives as what it was."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict

import msgspec
import pytest
from pydantic import BaseModel
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS

from synergon import Context, Engine, PayloadError, injected


@dataclasses.dataclass
class Address:
    street: str
    number: int = 1


@dataclasses.dataclass(frozen=True)
class Customer:
    name: str
    addresses: list[Address]
    joined: datetime | None = None


class Options(TypedDict, total=False):
    size: int
    colour: str


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float


class Circle(msgspec.Struct, tag=True):
    centre: Point
    radius: float


class Square(msgspec.Struct, tag=True):
    corner: Point
    side: float


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    left: int
    right: str


class Order(BaseModel):
    item: str
    price: Decimal
    tags: set[str] = set()
    address: Optional[str] = None  # noqa: UP045  people write it so


CustomerId = NewType("CustomerId", int)

VALUES: list[tuple[Any, Any]] = [
    (int, 2**63),
    (int, -(2**63)),
    (int, 2**70),
    (float, 0.1),
    (float, 3),
    (bool, True),
    (str, "Grüße, 世界 \x00 \U0001f600"),
    (bytes, b"\x00\xff binary"),
    (bytearray, bytearray(b"\x01")),
    (None, None),
    (list[list[int]], [[1, 2], [], [3]]),
    (dict[str, list[int]], {"a": [1], "b": []}),
    (dict[int, str], {1: "one"}),
    (set[int], {1, 2, 3}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, ...], (1, 2)),
    (tuple[int, str], (1, "a")),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    (date, date(2026, 1, 2)),
    (time, time(3, 4, 5)),
    (timedelta, timedelta(days=1, microseconds=1)),
    (uuid.UUID, uuid.UUID("12345678-1234-5678-1234-567812345678")),
    (Decimal, Decimal("0.10000000000000000000001")),
    (Colour, Colour.GREEN),
    (Level, Level.HIGH),
    (Literal["a", "b"], "b"),
    (Address, Address("Main Street", 5)),
    (Customer, Customer("Ada", [Address("A", 1), Address("B", 2)], datetime(2026, 1, 1, tzinfo=UTC))),
    (Options, {"size": 3}),
    (Point, Point(1.5, -2.5)),
    (Circle | Square, Square(Point(0, 0), 2.0)),
    (list[Circle | Square], [Circle(Point(0, 0), 1.0), Square(Point(0, 0), 2.0)]),
    (Pair, Pair(1, "b")),
    (Order, Order(item="book", price=Decimal("9.99"), tags={"a"})),
    (list[Order], [Order(item="book", price=Decimal(1))]),
    (dict[str, Order], {"first": Order(item="book", price=Decimal(1))}),
    (Order | None, None),
    (Order | None, Order(item="book", price=Decimal(1))),
    (Optional[int], None),  # noqa: UP045
    (int | str, "three"),
    (CustomerId, CustomerId(7)),
    (Annotated[int, msgspec.Meta(ge=0)], 3),
    (Annotated[str, {"not": "hashable"}], "x"),
    (Any, {"free": [1, "a", None, {"deep": True}]}),
    (object, [1, "two"]),
    (Mapping[str, int], {"a": 1}),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=lambda part: str(part)[:40])
async def test_a_value_arrives_at_the_body_and_comes_back_as_what_it_was(
    new_engine: NewEngine, memory_url: str, annotation: Any, value: Any
) -> None:
    engine = new_engine(memory_url)
    seen: list[Any] = []

    async def echo(value: Any) -> Any:
        seen.append(value)
        return value

    echo.__annotations__ = {"value": annotation, "return": annotation}
    task = engine.task(echo)
    async with engine.worker():
        handle = await task.enqueue(value)
        result = await handle.result(PATIENCE_SECONDS)
    for found in (*seen, result):
        assert found == value
        assert type(found) is type(value) or (annotation is float and type(found) is float)


async def test_a_few_of_them_survive_every_store(engine: Engine) -> None:
    @engine.task
    async def echo(
        customer: Customer, order: Order, shape: Circle | Square, raw: bytes
    ) -> tuple[Customer, Order, bytes]:
        assert isinstance(shape, Square)
        return customer, order, raw

    customer = Customer("Ada", [Address("A")])
    order = Order(item="book", price=Decimal("9.99"))
    async with engine.worker():
        handle = await echo.enqueue(customer, order, shape=Square(Point(0, 0), 1), raw=b"\x00\xff")
        assert await handle.result(PATIENCE_SECONDS) == (customer, order, b"\x00\xff")
        assert (await handle.status()).arguments["customer"]["name"] == "Ada"


async def test_defaults_that_are_left_out_are_the_functions_own(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    marker = object()

    @engine.task
    async def with_defaults(
        first: int,
        second: str = "two",
        third: list[int] | None = None,
        fourth: Any = marker,
        fifth: Order = Order(item="pen", price=Decimal(1)),  # noqa: B008
        *,
        sixth: Colour = Colour.RED,
    ) -> list[Any]:
        return [first, second, third, fourth is marker, fifth.item, sixth.value]

    async with engine.worker():
        left_out = await with_defaults.enqueue(1)
        assert (await left_out.status()).arguments == {"first": 1}
        assert await left_out.result(PATIENCE_SECONDS) == [1, "two", None, True, "pen", "red"]
        given = await with_defaults.enqueue(1, "zwei", [3], 4, Order(item="book", price=Decimal(2)), sixth=Colour.GREEN)
        assert await given.result(PATIENCE_SECONDS) == [1, "zwei", [3], False, "book", "green"]


async def test_parameters_of_every_sort_get_their_values(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def odd(first: int, /, ctx: Context, second: int, *, third: int, again: Context = injected) -> list[int]:
        assert ctx is again
        return [first, second, third, ctx.attempt]

    async with engine.worker():
        handle = await odd.enqueue(1, 2, third=3)  # type: ignore[call-arg, arg-type]  # ctx is not the first
        assert await handle.result(PATIENCE_SECONDS) == [1, 2, 3, 1]


async def test_each_parameter_without_a_name_gets_its_own_value(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def nameless(
        first: int, second: int = 2, third: int = 3, ctx: Context = injected, /, last: int = 4
    ) -> list[int]:
        return [first, second, third, ctx.attempt, last]

    async with engine.worker():
        by_name = nameless.call(7, third=8)  # type: ignore[call-arg]  # not by name in a plain call, but in a payload
        calls = [nameless.call(7), by_name, nameless.call(7, last=9)]
        handles = await engine.enqueue(calls)
        results = [await handle.result(PATIENCE_SECONDS) for handle in handles]
    assert results == [[7, 2, 3, 1, 4], [7, 2, 8, 1, 4], [7, 2, 3, 1, 9]]


async def test_what_has_no_annotation_is_plain_json(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def untyped(value, more=None):  # type: ignore[no-untyped-def]  # untyped on purpose
        return [value, more]

    async with engine.worker():
        handle = await untyped.enqueue({"a": [1, None]}, more="x")
        assert await handle.result(PATIENCE_SECONDS) == [{"a": [1, None]}, "x"]


async def test_numbers_that_fit_their_annotation_are_taken_as_it_says(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def take(number: float) -> bool:
        return isinstance(number, float)

    async with engine.worker():
        assert await (await take.enqueue(3)).result(PATIENCE_SECONDS) is True


async def test_a_result_that_nobody_annotated_is_what_json_makes_of_it(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def give():  # type: ignore[no-untyped-def]  # untyped on purpose
        return {"at": datetime(2026, 1, 1, tzinfo=UTC), "who": Address("A"), "many": (1, 2)}

    async with engine.worker():
        result = await (await give.enqueue()).result(PATIENCE_SECONDS)
    assert result == {"at": "2026-01-01T00:00:00Z", "who": {"street": "A", "number": 1}, "many": [1, 2]}


class Counted(BaseModel):
    name: str

    def model_post_init(self, _context: Any) -> None:
        MADE.append(self.name)


MADE: list[str] = []


@pytest.mark.parametrize(
    "limit_by", [None, lambda person: person.name, "{person.name}"], ids=["without", "function", "text"]
)
def test_arguments_are_decoded_once_where_a_call_is_made(new_engine: NewEngine, limit_by: Any) -> None:
    engine = new_engine("memory://")

    @engine.task(**({"limit_by": limit_by, "limit": 1} if limit_by else {}))  # type: ignore[untyped-decorator]  # its options are a dict
    async def greet(person: Counted) -> None: ...

    ada = Counted(name="Ada")
    MADE.clear()
    assert greet.call(ada).limit_key == ("Ada" if limit_by else None)
    assert MADE == ["Ada"]


async def test_paths_are_arguments_and_results(engine: Engine) -> None:
    @engine.task
    async def parent(path: Path, other: PurePosixPath | None = None) -> list[Path]:
        assert isinstance(path, Path)
        return [path.parent]

    async with engine.worker():
        handle = await parent.enqueue(Path("/var/log/app.log"))
        assert await handle.result(PATIENCE_SECONDS) == [Path("/var/log")]
        assert (await handle.status()).arguments == {"path": "/var/log/app.log"}
        with pytest.raises(PayloadError, match=r"path|argument"):
            await parent.enqueue(7)  # type: ignore[arg-type]
