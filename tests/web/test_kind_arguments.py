"""Arguments over HTTP: what does not fit is refused, and the JSON Schema says so beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from jsonschema_rs import Draft202012Validator
from tests.web.web_support import answered, client, register_kinds

from synergon import Engine, OptionError
from synergon.web.kind_routes import arguments_schema


@pytest.fixture
def url(memory_url: str) -> str:
    return memory_url


@pytest.fixture(autouse=True)
def _kinds(engine: Engine) -> None:
    register_kinds(engine)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"arguments": {}}, 422, "needs name"),
        ({"arguments": {"name": 5}}, 422, r"Expected `str`, got `int`"),
        ({"arguments": {"name": "ada", "other": 1}}, 422, "has no argument 'other'"),
        ({"arguments": [1]}, 400, "Expected `object`"),
        ({"arguments": {"name": "ada"}, "options": {"delay": "soon"}}, 400, "delay"),
        ({"arguments": {"name": "ada"}, "options": {"runs_in": "process"}}, 400, "unknown field `runs_in`"),
        ({"arguments": {"name": "ada"}, "options": {"delay": 1, "run_at": "2030-01-01T00:00:00Z"}}, 400, "not both"),
        ({"arguments": {"name": "ada"}, "options": {"on_conflict": "raise"}}, 400, "give a key too"),
        ({"kwargs": {}}, 400, "unknown field `kwargs`"),
    ],
)
async def test_bad_arguments_and_options_store_nothing(
    engine: Engine, body: dict[str, Any], status: int, words: str
) -> None:
    async with engine, client(engine, "operate") as http:
        assert words in answered(await http.post("/kinds/greet/tasks", json=body), status)["detail"]
        assert not await engine.tasks()


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_of_a_request_has_a_length(engine: Engine, key: str) -> None:
    async with engine, client(engine, "operate") as http:
        body = {"arguments": {"name": "ada"}}
        answered(await http.post("/kinds/greet/tasks", json=body, headers={"Idempotency-Key": key}), 400)
        assert not await engine.tasks()


async def test_other_changes_take_no_key(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        refused = await http.post("/queues/default/pause", json={}, headers={"Idempotency-Key": "a"})
        assert "only for requests that enqueue" in answered(refused, 400)["detail"]
        assert await engine.audit() == []


# ---------------------------------------------------------------- schemas


class Inner(pydantic.BaseModel):
    letter: str


class Model(pydantic.BaseModel):
    code: int
    inner: list[Inner] = []


@dataclass
class Address:
    city: str
    zip: Annotated[str, msgspec.Meta(pattern="^[0-9]{5}$")] = "00000"


async def every(
    number: Annotated[int, msgspec.Meta(ge=1)],
    when: datetime,
    address: Address,
    model: Model,
    path: Path = Path(),
    choice: Literal["a", "b"] | None = None,
    anything: Any = None,
    thing: object = None,
) -> None: ...


RIGHT = {"number": 1, "when": "2030-01-01T00:00:00Z", "address": {"city": "Rome"}, "model": {"code": 5}}


@pytest.mark.parametrize(
    ("change", "is_right"),
    [
        ({}, True),
        ({"choice": "a", "anything": [1, {}], "path": "/tmp"}, True),
        ({"choice": None}, True),
        ({"number": 0}, False),
        ({"number": "1"}, False),
        ({"address": {}}, False),
        ({"address": {"city": "Rome", "zip": "x"}}, False),
        ({"model": {}}, False),
        ({"model": {"code": 5, "inner": [{"letter": "a"}]}, "thing": {"a": 1}}, True),
        ({"model": {"code": 5, "inner": [{}]}}, False),
        ({"choice": "c"}, False),
        ({"other": 1}, False),
        ({"path": 5}, False),
    ],
)
def test_the_schema_rejects_what_the_kind_rejects(engine: Engine, change: dict[str, Any], is_right: bool) -> None:
    task_type = engine.task(every)
    given: dict[str, Any] = {**RIGHT, **change}
    assert Draft202012Validator(arguments_schema(task_type)).is_valid(given) is is_right
    if is_right:
        task_type.call(**given)
    else:
        with pytest.raises((ValueError, TypeError)):
            task_type.call(**given)


def test_a_command_cannot_be_offered(engine: Engine) -> None:
    provider = engine.provider("others", servers=["http://gpu2:8000"])
    with pytest.raises(OptionError, match="api"):

        @provider.command(api=True)  # type: ignore[call-overload, untyped-decorator, unused-ignore]
        async def restart() -> None: ...

    wrong: Any = "yes"
    with pytest.raises(OptionError, match="api"):

        @engine.task(api=wrong)
        async def offered() -> None: ...
