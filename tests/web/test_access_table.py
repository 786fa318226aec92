"""Every route for every role: who may call it, and that a refused call changes nothing."""

from __future__ import annotations

import re

import pytest
from tests.web.web_support import client, register_kinds

from synergon import Engine
from synergon.web.access import Role
from synergon.web.routes import Route
from synergon.web.tables import ROUTES

CALLERS = (None, *Role)
PARAMETER = re.compile(r"\{\w+(?::(\w+))?\}")


def path_of(route: Route) -> str:
    """A path of the route, of things that do not exist."""
    return PARAMETER.sub(lambda found: "987654321" if found[1] == "int" else "nothing", route.path)


@pytest.fixture
def url(memory_url: str) -> str:
    """Access does not depend on the store."""
    return memory_url


@pytest.mark.parametrize("caller", CALLERS)
async def test_each_route_answers_only_callers_with_its_role(engine: Engine, caller: Role | None) -> None:
    register_kinds(engine)
    async with engine, client(engine, caller) as http:
        for route in ROUTES:
            if caller is not None and caller.allows(route.role):
                continue
            response = await http.request(route.method, path_of(route), json={} if route.method == "POST" else None)
            assert response.status_code == (401 if caller is None else 403), f"{route.method} {route.path}"
            if caller is None:
                assert response.headers["www-authenticate"].startswith("Bearer")
            else:
                assert f"needs the role {route.role}" in response.json()["detail"]
        assert await engine.audit() == [], "a refused call changes nothing"
        for route in ROUTES:
            if caller is None or not caller.allows(route.role) or route.media_type != "application/json":
                continue  # a stream of events has no end; test_events.py reads it
            response = await http.request(route.method, path_of(route), json={} if route.method == "POST" else None)
            assert response.status_code in (200, 201, 202, 400, 404), f"{route.method} {route.path}: {response.text}"


def test_what_changes_something_needs_more_than_read() -> None:
    for route in ROUTES:
        is_allowed = Role.READ.allows(route.role)
        assert is_allowed is not route.is_change or route.path == "/doctor", route.path


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert all(route.summary.endswith(".") for route in ROUTES)
