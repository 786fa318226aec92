"""The OpenAPI document: it is right, and the server does what it says. The long form tries more examples."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
import uvicorn
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support import free_port
from tests.web.web_support import register_kinds

from synergon import Engine
from synergon.web.access import Role, User, everybody
from synergon.web.app import make_app
from synergon.web.openapi import document_of
from synergon.web.server import config_of, plan
from synergon.web.tables import ROUTES

IS_LONG_RUN = bool(os.environ.get("SYNERGON_LONG"))
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

SCHEMA = schemathesis.openapi.from_dict(document_of(ROUTES)).exclude(path="/api/v1/events")  # its answer has no end


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """The address of a server with tasks in every state, in a thread."""
    started = threading.Event()
    planned = plan(f"127.0.0.1:{free_port()}", credentials=None)
    servers: list[uvicorn.Server] = []

    async def main() -> None:
        engine = Engine("memory://openapi", sweep=60)
        register_kinds(engine)
        async with engine:
            await fill(engine)
            app = make_app(engine, auth=everybody(User("admin", Role.ADMIN)), hosts=planned.hosts)
            servers.append(uvicorn.Server(config_of(app, planned)))
            started.set()
            await servers[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(30)
    yield planned.url
    servers[0].should_exit = True
    thread.join(30)


async def fill(engine: Engine) -> None:
    """Tasks of several states, a flow, a group and a schedule."""
    greet = engine.kinds["greet"]
    handles = await greet.enqueue_many([(f"n{number}",) for number in range(6)])
    await engine.cancel(handles[0].id, "no")
    await greet.with_options(delay="1h", key="later", tags=["vip"], meta={"customer": 42}).enqueue("later")
    await engine.chain([greet.call("a"), greet.call("b")], name="both").enqueue()
    await engine.group("pair", [greet.call("c"), greet.call("d")])
    await engine.schedules.create("hourly", greet.call("ada"), every="1h")


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=200 if IS_LONG_RUN else 2,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
    database=None,
)
def test_the_server_answers_as_the_document_says(case: Any, base_url: str) -> None:
    response = case.call(base_url=base_url)
    case.validate_response(response, checks=CHECKS)


def test_the_document_has_every_route_with_its_role() -> None:
    paths = document_of(ROUTES)["paths"]
    assert sum(len(path) for path in paths.values()) == len(ROUTES)
    for route in ROUTES:
        assert any(
            operation["operationId"] == route.name and operation["x-role"] == route.role
            for path in paths.values()
            for operation in path.values()
        )


def test_every_reference_in_the_document_leads_somewhere() -> None:
    document = document_of(ROUTES)
    found: list[str] = []
    todo: list[Any] = [document]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += one.values()
            found += [value for name, value in one.items() if name == "$ref"]
        elif isinstance(one, list):
            todo += one
    names = {reference.removeprefix("#/components/schemas/") for reference in found}
    assert names <= document["components"]["schemas"].keys()
    assert len(names) > 30
