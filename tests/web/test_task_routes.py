"""The routes of tasks, on every store: what they answer, what they change, and what the audit has of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS
from tests.web.web_support import answered, client, register_kinds

from synergon import Engine, State
from synergon.web import background


@pytest.fixture(autouse=True)
def _kinds(engine: Engine) -> None:
    register_kinds(engine)


async def test_tasks_are_listed_page_by_page_and_filtered(engine: Engine) -> None:
    async with engine, client(engine, "read") as http:
        greet = engine.kinds["greet"]
        tagged = greet.with_options(tags=["vip"], meta={"customer": 42}, queue="mail")
        ids = [(await greet.enqueue(f"n{number}")).id for number in range(5)]
        vip = (await tagged.enqueue("ada")).id
        first = answered(await http.get("/tasks", params={"limit": 4}), 200)
        rest = answered(await http.get("/tasks", params={"limit": 4, "after": first["next"]}), 200)
        assert [task["id"] for task in (*first["tasks"], *rest["tasks"])] == [vip, *reversed(ids)]
        assert rest["next"] is None
        for query, expected in (
            ({"tag": "vip"}, [vip]),
            ({"meta": "customer=42"}, [vip]),
            ({"meta": "customer=43"}, []),
            ({"queue": "mail", "kind": ["greet", "pay"], "state": "ready"}, [vip]),
            ({"title": "greet ADA"}, [vip]),
            ({"search": "ada"}, [vip]),
            ({"state": ["failed", "cancelled"]}, []),
            ({"flow": 7}, []),
            ({"parent": ids[0]}, []),
            ({"node": ["nobody", "no one"]}, []),
            ({"enqueued_until": "2000-01-01T00:00:00Z"}, []),
            ({"sort": "due", "ascending": "true"}, []),
        ):
            found = answered(await http.get("/tasks", params=query), 200)
            assert [task["id"] for task in found["tasks"]] == expected, query
        shown = answered(await http.get(f"/tasks/{vip}"), 200)
        assert (shown["arguments"], shown["title"], shown["redacted"]) == ({"name": "ada"}, "Greet ada", [])
        assert answered(await http.get("/counts", params={"kind": "greet"}), 200)["counts"]["ready"] == 6
        assert answered(await http.get(f"/tasks/{vip}/explanation"), 200)["state"] == "ready"


async def test_one_task_is_changed_and_each_change_is_in_the_audit_with_its_caller(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        task_id = (await engine.kinds["greet"].enqueue("ada")).id
        task = f"/tasks/{task_id}"
        assert answered(await http.post(f"{task}/priority", json={"priority": 7}), 200)["priority"] == 7
        assert answered(await http.post(f"{task}/reschedule", json={"delay": "1h"}), 200)["state"] == "scheduled"
        moved = answered(await http.post(f"{task}/reschedule", json={"run_at": "2030-01-01T00:00:00+01:00"}), 200)
        assert moved["run_at"].startswith("2029-12-31T23:00:00")
        meta = {"values": {"customer": 1, "password": "hunter22"}}
        assert answered(await http.post(f"{task}/meta", json=meta), 200)["meta"]["customer"] == 1
        assert answered(await http.post(f"{task}/timeout", json={"extend": "10m"}), 409)["state"] == "scheduled"
        cancelled = answered(await http.post(f"{task}/cancel", json={"why": "by mistake"}), 200)
        assert (cancelled["state"], cancelled["errors"][0]["message"]) == ("cancelled", "by mistake")
        assert answered(await http.post(f"{task}/cancel", json={}), 409)["task_id"] == task_id
        assert answered(await http.post(f"{task}/retry", json={}), 200)["state"] == "ready"
        answered(await http.post(f"{task}/cancel", json={}), 200)
        assert answered(await http.delete(task), 200) == {"deleted": 1}
        answered(await http.delete(task), 404)
        entries = await engine.audit()
        assert {entry.who for entry in entries} == {"operate-user@10.0.0.7"}
        assert [(entry.verb, entry.outcome) for entry in reversed(entries)] == [
            ("set_priority", "priority 7"),
            ("reschedule", "rescheduled"),
            ("reschedule", "rescheduled"),
            ("update_meta", "changed"),
            ("extend_timeout", "rejected: the task is scheduled"),
            ("cancel", "cancelled"),
            ("cancel", "ended before"),
            ("retry", "retried"),
            ("cancel", "cancelled"),
            ("delete", "deleted"),
            ("delete", "rejected: no task of that id"),
        ]
        listed = answered(await http.get("/audit", params={"limit": 100}), 200)["actions"]
        values = next(action["value"] for action in listed if action["verb"] == "update_meta")
        assert values == {"customer": 1, "password": "[redacted]"}


async def test_a_running_task_gets_more_time_and_is_cancelled(engine: Engine) -> None:
    started = asyncio.Event()

    @engine.task
    async def slow() -> None:
        started.set()
        await asyncio.sleep(PATIENCE_SECONDS)

    async with engine, engine.worker(), client(engine, "operate") as http:
        handle = await slow.enqueue()
        await started.wait()
        assert (
            answered(await http.post(f"/tasks/{handle.id}/timeout", json={"extend": "10m"}), 200)["state"] == "running"
        )
        answered(await http.delete(f"/tasks/{handle.id}"), 409)
        answered(await http.post(f"/tasks/{handle.id}/priority", json={"priority": 1}), 409)
        assert answered(await http.post(f"/tasks/{handle.id}/cancel", json={}), 200)["cancel_requested"] is True
        assert (await engine.wait(handle.id, timeout=PATIENCE_SECONDS)).state is State.CANCELLED


async def test_all_tasks_that_match_are_changed_after_a_dry_run(engine: Engine) -> None:
    async with engine, client(engine, "admin") as http:
        greet = engine.kinds["greet"]
        await greet.enqueue_many([(f"n{number}",) for number in range(7)])
        await greet.with_options(tags=["vip"]).enqueue("ada")
        dry = {"filter": {"tag": "vip"}, "dry_run": True}
        assert answered(await http.post("/tasks/cancel", json=dry), 200)["matching"] == 1
        assert (await engine.counts())[State.READY] == 8
        for path, body, changed in (
            ("priority", {"filter": {"kind": ["greet"]}, "priority": 3, "why": "urgent"}, 8),
            ("reschedule", {"filter": {"state": ["ready"]}, "delay": 3600, "why": "later"}, 8),
            ("cancel", {"filter": {"tag": "vip"}, "why": "enough"}, 1),
            ("cancel", {"all": True}, 7),
            ("retry", {"filter": {"state": ["cancelled"]}, "why": "mended"}, 8),
            ("cancel", {"all": True}, 8),
            ("delete", {"all": True, "why": "useless"}, 8),
        ):
            assert answered(await http.post(f"/tasks/{path}", json=body), 200)["changed"] == changed, (path, body)
        entries = await engine.audit()
        assert entries[0].outcome == "8 tasks deleted"
        assert [entry.why for entry in entries] == ["useless", None, "mended", None, "enough", "later", "urgent"]
        assert {entry.who for entry in entries} == {"admin-user@10.0.0.7"}
        assert not await engine.tasks()


async def test_a_long_operation_goes_on_without_its_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine, client(engine, "operate") as http:
        await engine.kinds["greet"].enqueue("ada")
        go_on = asyncio.Event()
        apply = engine._bulk.apply

        async def late(*arguments: Any) -> int:
            await go_on.wait()
            return await apply(*arguments)

        monkeypatch.setattr("synergon.client.bulk.Bulk.apply", lambda _bulk, *arguments: late(*arguments))
        monkeypatch.setattr("synergon.web.bulk_routes.WAIT_SECONDS", 0.0)
        answer = answered(await http.post("/tasks/cancel", json={"all": True}), 200)
        assert answer == {"matching": None, "visited": 0, "changed": 0, "is_done": False}
        (running,) = background.RUNNING
        go_on.set()
        assert await running == 1


async def test_two_operators_on_one_task_get_one_success_and_one_conflict(engine: Engine) -> None:
    async with engine, client(engine, "operate") as one, client(engine, "admin") as other:
        task_id = (await engine.kinds["greet"].enqueue("ada")).id
        for path, states in ((f"/tasks/{task_id}/cancel", "cancelled"), (f"/tasks/{task_id}/retry", "ready")):
            answers = await asyncio.gather(one.post(path, json={}), other.post(path, json={}))
            assert sorted(answer.status_code for answer in answers) == [200, 409]
            assert (await engine.get(task_id)).state == states
        answers = await asyncio.gather(one.delete(f"/tasks/{task_id}"), other.post(f"/tasks/{task_id}/cancel", json={}))
        assert {answer.status_code for answer in answers} <= {200, 404, 409}
        assert len(await engine.audit()) == 6, "each attempt is in the audit"
