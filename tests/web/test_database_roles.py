"""The web API under the roles of a database: a viewer shows everything and changes nothing, an operator changes."""

from __future__ import annotations

import pytest
from tests.conftest import NewEngine
from tests.postgres_server import SCHEMA, administer
from tests.stores.one_postgres import ours_only, role, statements, url_of_role
from tests.web.web_support import answered, client, register_kinds

from synergon.stores.postgres import PostgresStore
from synergon.web.tables import ROUTES

pytestmark = ours_only


@pytest.mark.parametrize("duty", ["viewer", "operator"])
async def test_the_api_does_what_its_database_role_may(new_engine: NewEngine, postgres_url: str, duty: str) -> None:
    owner = new_engine(postgres_url)
    register_kinds(owner)
    async with owner:
        task_id = (await owner.kinds["greet"].enqueue("ada")).id
        with role("web_role"):
            for statement in statements(PostgresStore(postgres_url).grants_sql(duty, "web_role")):
                administer(statement)
            server = new_engine(url_of_role("web_role", schema=SCHEMA))
            register_kinds(server)
            async with client(server) as http:
                for route in ROUTES:
                    if route.method == "GET" and "{" not in route.path and route.path != "/events":
                        answered(await http.get(route.path), 200)
                cancelled = await http.post(f"/tasks/{task_id}/cancel", json={})
                enqueued = await http.post("/kinds/greet/tasks", json={"arguments": {"name": "eve"}})
                if duty == "viewer":
                    assert "database role" in answered(cancelled, 403)["detail"]
                    answered(enqueued, 403)
                else:
                    answered(cancelled, 200)
                    answered(enqueued, 201)
                    assert answered(await http.post("/tasks/cancel", json={"all": True}), 200)["changed"] == 1
            await server.stop()
        assert len(await owner.audit()) == (0 if duty == "viewer" else 3)
