"""Kinds over HTTP: which are offered, the JSON Schemas of their arguments, and Idempotency-Key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.node.every_store import every_url  # noqa: F401
from tests.web.web_support import answered, client, register_kinds

from synergon import Engine


@pytest.fixture(autouse=True)
def _kinds(engine: Engine) -> None:
    register_kinds(engine)


async def test_only_kinds_that_the_code_offers_are_enqueued(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        kinds = {kind["kind"]: kind for kind in answered(await http.get("/kinds"), 200)["kinds"]}
        assert {name for name, kind in kinds.items() if kind["is_offered"]} == {"greet", "invoice"}
        assert kinds["internal"]["arguments_schema"] is None
        assert answered(await http.get("/kinds/greet"), 200)["arguments_schema"]["required"] == ["name"]
        refused = answered(await http.post("/kinds/internal/tasks", json={"arguments": {"command": "rm"}}), 403)
        assert "api=True" in refused["detail"]
        answered(await http.post("/kinds/os.system/tasks", json={"arguments": {"command": "rm"}}), 404)
        answered(await http.get("/kinds/os.system"), 404)
        assert not await engine.tasks()
        assert await engine.audit() == []


async def test_a_task_is_enqueued_with_its_options(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        options = {"queue": "mail", "priority": 3, "delay": "1h", "tags": ["vip"], "meta": {"customer": 42}}
        body = {"arguments": {"name": "ada"}, "options": options}
        made = answered(await http.post("/kinds/greet/tasks", json=body), 201)
        task = await engine.get(made["id"])
        assert (task.arguments, task.queue, task.priority, task.tags) == ({"name": "ada"}, "mail", 3, ("vip",))
        assert (task.state, task.meta, task.title) == ("scheduled", {"customer": 42}, "Greet ada")
        (entry,) = await engine.audit()
        assert (entry.verb, entry.subject, entry.value) == ("enqueue", "greet", task.id)
        assert (entry.who, entry.outcome) == ("operate-user@10.0.0.7", f"created task {task.id}")


async def test_a_repeated_request_gets_the_task_of_the_first_one(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http, client(engine, "admin") as other:
        key, body = {"Idempotency-Key": "order-1"}, {"arguments": {"name": "ada"}}
        first = answered(await http.post("/kinds/greet/tasks", json=body, headers=key), 201)
        await engine.cancel(first["id"])  # also after the end of the task
        again = answered(await http.post("/kinds/greet/tasks", json=body, headers=key), 200)
        assert (again["id"], again["created"], first["created"]) == (first["id"], False, True)
        wrong = await http.post("/kinds/greet/tasks", json={"arguments": {"name": "eve"}}, headers=key)
        assert answered(wrong, 422)["task_id"] == first["id"]
        assert answered(await other.post("/kinds/greet/tasks", json=body, headers=key), 201)["created"] is True
        assert answered(await http.post("/kinds/greet/tasks", json=body), 201)["created"] is True
        assert len(await engine.tasks()) == 3
        assert len(await engine.audit()) == 3, "a repeated request has changed nothing"
        await engine.delete(first["id"])
        assert answered(await http.post("/kinds/greet/tasks", json=body, headers=key), 201)["created"] is True


async def test_of_many_requests_with_one_key_one_creates_a_task(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        sent: dict[str, Any] = {"json": {"arguments": {"name": "ada"}}, "headers": {"Idempotency-Key": "once"}}
        answers = await asyncio.gather(*(http.post("/kinds/greet/tasks", **sent) for _ in range(8)))
        found = [answered(answer, answer.status_code) for answer in answers]
        assert sorted(answer.status_code for answer in answers) == [*[200] * 7, 201]
        assert [made["created"] for made in found].count(True) == 1
        assert len({made["id"] for made in found}) == 1
        assert len(await engine.tasks()) == 1


async def test_the_key_of_a_kind_and_the_key_of_a_request_are_both_kept(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:

        async def send(customer: str, key: str) -> Any:
            body = {"arguments": {"customer": customer}}
            response = await http.post("/kinds/invoice/tasks", json=body, headers={"Idempotency-Key": key})
            return answered(response, 201 if response.json().get("created") else 200)

        first = await send("acme", "a")
        assert (await send("acme", "b")) == {"id": first["id"], "created": False}
        await engine.cancel(first["id"])
        assert (await send("acme", "a")) == {"id": first["id"], "created": False}
        assert (await send("acme", "b")) == {"id": first["id"], "created": False}
        assert (await send("acme", "c"))["created"] is True


async def test_a_key_of_another_task_is_a_conflict_and_no_repeated_request(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:

        async def send(name: str, key: str, **options: Any) -> Any:
            body = {"arguments": {"name": name}, "options": {"key": "k", **options}}
            return await http.post("/kinds/greet/tasks", json=body, headers={"Idempotency-Key": key})

        first = answered(await send("ada", "a"), 201)
        for _ in range(2):  # the second time, the Idempotency-Key leads to the task, too
            assert answered(await send("bob", "b"), 200) == {"id": first["id"], "created": False}
        assert "task_id" in answered(await send("bob", "c", on_conflict="raise"), 409)
        assert answered(await send("eve", "d", on_conflict="replace"), 200) == {"id": first["id"], "created": False}
        assert (await engine.get(first["id"])).arguments == {"name": "eve"}
        assert len(await engine.tasks()) == 1


OTHER_OPTIONS: dict[str, Any] = {
    "queue": "mail",
    "priority": 1,
    "delay": "1h",
    "run_at": "2100-01-01T00:00:00Z",
    "expires_in": "1d",
    "key": "k",
    "meta": {"customer": 1},
}


async def test_a_repeated_request_is_compared_by_what_it_means(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:

        async def send(arguments: Any, **options: Any) -> Any:
            body = {"arguments": arguments, "options": options}
            return await http.post("/kinds/greet/tasks", json=body, headers={"Idempotency-Key": "a"})

        first = answered(await send({"name": "ada"}, tags=["vip"]), 201)
        again = {"id": first["id"], "created": False}
        assert answered(await send({"name": "ada", "times": 1}, tags=["vip"]), 200) == again
        for arguments, options in (
            ({"name": "ada", "times": 2}, {"tags": ["vip"]}),
            ({"name": "ada"}, {}),
            *(({"name": "ada"}, {"tags": ["vip"], name: value}) for name, value in OTHER_OPTIONS.items()),
        ):
            refused = answered(await send(arguments, **options), 422)
            assert "with other arguments or options" in refused["detail"]
            assert refused["task_id"] == first["id"]
        assert answered(await send({"name": "ada"}, tags=["vip"]), 200) == again
        assert len(await engine.tasks()) == 1
