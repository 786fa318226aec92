"""Queues, limits, nodes, providers, schedules, flows, groups, retention and the doctor over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support import PATIENCE_SECONDS, until
from tests.web.web_support import answered, client, register_kinds

from synergon import Engine, State


@pytest.fixture(autouse=True)
def _kinds(engine: Engine) -> None:
    register_kinds(engine)


async def test_queues_are_paused_and_resumed(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        await engine.kinds["greet"].with_options(queue="a/b c").enqueue("ada")
        assert answered(await http.post("/queues/a%2Fb%20c/pause", json={}), 200) == {"name": "a/b c", "changed": True}
        assert answered(await http.post("/queues/a/b c/pause", json={}), 200)["changed"] is False
        (queue,) = [each for each in answered(await http.get("/queues"), 200)["queues"] if each["name"] == "a/b c"]
        assert queue["paused_at"] is not None
        assert queue["counts"] == {"ready": 1}
        assert answered(await http.post("/queues/a%2Fb%20c/resume", json={}), 200)["changed"] is True
        answered(await http.post("/queues/nothing/resume", json={}), 404)
        status = answered(await http.get("/status"), 200)
        assert status["problems"] == ["tasks are ready, and no worker runs"]


async def test_limits_and_servers_are_changed(engine: Engine) -> None:
    async with engine, client(engine) as http:
        changed = answered(await http.post("/limits/gpu", json={"value": 5}), 200)
        assert (changed["name"], changed["value"]) == ("gpu", 5)
        rated = answered(await http.post("/limits/gpu", json={"rate": {"count": 600, "per": "1m"}}), 200)
        assert (rated["value"], rated["rate"]["per"], rated["rate"]["starts"]) == (5, 60_000_000, 600)
        assert answered(await http.post("/limits/gpu", json={"value": None, "rate": None}), 200)["rate"] is None
        answered(await http.post("/limits/gpu", json={}), 400)
        answered(await http.post("/limits/gpu", json={"value": -1}), 400)
        assert "declared are: gpu" in answered(await http.post("/limits/nothing", json={"value": 1}), 404)["detail"]
        pool = {"servers": {"http://gpu1:8000": 2, "http://gpu2:8000": None}}
        provider = answered(await http.post("/providers/models/servers", json=pool), 200)
        assert {server["address"]: server["capacity"] for server in provider["servers"]} == pool["servers"]
        (listed,) = answered(await http.get("/providers"), 200)["providers"]
        assert listed == provider
        answered(await http.post("/providers/nothing/servers", json=pool), 404)
        answered(await http.post("/providers/models/servers", json={"servers": {"": 1}}), 400)


async def test_one_server_is_added_closed_and_removed(engine: Engine) -> None:
    async with engine, client(engine) as http:

        async def change(verb: str, **body: Any) -> dict[str, Any]:
            provider = answered(await http.post(f"/providers/models/servers/{verb}", json=body), 200)
            return {server["address"]: server["capacity"] for server in provider["servers"]}

        first, second = "http://gpu1:8000", "http://gpu2:8000"
        assert await change("add", address=second) == {first: 1, second: 1}
        assert await change("add", address=second, capacity=None) == {first: 1, second: None}
        assert await change("close", address=first) == {first: 0, second: None}
        assert await change("remove", address=first) == {second: None}
        for verb in ("close", "remove"):
            answered(await http.post(f"/providers/models/servers/{verb}", json={"address": first}), 400)
        for verb in ("add", "close", "remove"):
            answered(await http.post(f"/providers/nothing/servers/{verb}", json={"address": first}), 404)
            answered(await http.post(f"/providers/models/servers/{verb}", json={}), 400)
        actions = answered(await http.get("/audit"), 200)["actions"]
        assert {"add_server", "close_server", "remove_server"} <= {action["verb"] for action in actions}
        assert [limit["name"] for limit in answered(await http.get("/limits"), 200)["limits"]] == ["gpu"]


async def test_nodes_are_cordoned_and_drained(engine: Engine) -> None:
    async with engine, engine.worker(), client(engine) as http:
        (node,) = answered(await http.get("/nodes"), 200)["nodes"]
        assert (node["is_alive"], node["is_cordoned"], node["name"]) == (True, False, engine.settings.name)
        for verb in ("cordon", "uncordon"):
            requested = answered(await http.post(f"/nodes/{node['id']}/{verb}", json={}), 202)
            assert requested == {"node_id": node["id"], "requested": verb}
        answered(await http.post("/nodes/nothing/drain", json={}), 404)
        answered(await http.post(f"/nodes/{node['id']}/drain", json={}), 202)

        async def is_gone() -> bool:
            return not answered(await http.get("/nodes"), 200)["nodes"]

        await until(is_gone)
        assert {action.who for action in await engine.audit()} == {"admin-user@10.0.0.7"}


async def test_a_schedule_of_run_time_is_changed_and_one_of_code_is_not(engine: Engine) -> None:
    async with engine.worker(), client(engine, "operate") as http:
        await engine.schedules.create("a/b", engine.kinds["greet"].call("ada"), every="1h")
        changed = answered(await http.post("/schedules/a/b", json={"cron": "0 4 * * *", "tz": "Asia/Tokyo"}), 200)
        assert (changed["cron"], changed["every"], changed["tz"]) == ("0 4 * * *", None, "Asia/Tokyo")
        changed = answered(await http.post("/schedules/a/b", json={"overlap": "queue", "jitter": "5m"}), 200)
        assert (changed["cron"], changed["overlap"], changed["jitter"]) == ("0 4 * * *", "queue", "PT300S")
        answered(await http.post("/schedules/a/b", json={"ends_at": "2126-01-01T00:00:00Z"}), 200)
        assert answered(await http.post("/schedules/a/b", json={"ends_at": None}), 200)["ends_at"] is None
        for body in ({}, {"cron": "99 * * * *"}, {"every": "soon"}, {"missed": "none"}, {"colour": "red"}):
            answered(await http.post("/schedules/a/b", json=body), 400)
        assert (
            "declared in code" in answered(await http.post("/schedules/nightly", json={"every": "1h"}), 400)["detail"]
        )
        answered(await http.post("/schedules/nothing", json={"every": "1h"}), 404)
        assert [entry.verb for entry in await engine.audit()] == ["update_schedule"] * 4
    async with client(engine, "read") as http:
        answered(await http.post("/schedules/a/b", json={"every": "1h"}), 403)


async def test_schedules_are_shown_paused_run_and_deleted(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        await engine.schedules.create("a/b", engine.kinds["greet"].call("ada"), every="1h")
        (schedule,) = answered(await http.get("/schedules"), 200)["schedules"]
        assert (schedule["name"], schedule["state"], schedule["arguments"]) == ("a/b", "active", {"name": "ada"})
        assert answered(await http.get("/schedules/a%2Fb"), 200) == schedule
        assert answered(await http.get("/schedules/a/b/explanation"), 200)["state"] == "active"
        occurrences = answered(await http.get("/occurrences", params={"number": 3}), 200)["occurrences"]
        assert [each["name"] for each in occurrences] == ["a/b"] * 3
        assert answered(await http.post("/schedules/a/b/pause", json={}), 200)["changed"] is True
        assert answered(await http.post("/schedules/a/b/resume", json={}), 200)["changed"] is True
        run = answered(await http.post("/schedules/a/b/run", json={}), 200)
        assert run["task"]["kind"] == "greet"
        assert answered(await http.post("/schedules/a/b/run", json={}), 200)["task"] is None
        assert answered(await http.delete("/schedules/a/b"), 200) == {"deleted": 1}
        for path in ("/schedules/a/b", "/schedules/a/b/explanation", "/occurrences?name=a/b"):
            answered(await http.get(path), 404)
        assert {action.who for action in await engine.audit()} == {"operate-user@10.0.0.7"}


async def test_flows_and_groups_are_shown_cancelled_and_retried(engine: Engine) -> None:
    greet = engine.kinds["greet"]
    async with engine, client(engine, "operate") as http:
        run = await engine.chain([greet.call("a"), greet.call("b")], name="both").enqueue()
        group = await engine.group("pair", [greet.call("c"), greet.call("d")])
        (listed,) = answered(await http.get("/flows", params={"name": "both", "is_open": "true"}), 200)["flows"]
        assert listed["id"] == run.id
        shown = answered(await http.get(f"/flows/{run.id}"), 200)
        assert [step["task"]["arguments"]["name"] for step in shown["steps"]] == ["a", "b"]
        assert answered(await http.post(f"/flows/{run.id}/cancel", json={"why": "no"}), 200)["outcome"] == (
            "2 tasks cancelled"
        )
        assert answered(await http.post(f"/flows/{run.id}/retry", json={}), 200)["outcome"] == "2 tasks retried"
        tasks = answered(await http.get(f"/groups/{group.id}"), 200)["tasks"]
        assert [task["arguments"]["name"] for task in tasks] == ["c", "d"]
        answered(await http.post(f"/groups/{group.id}/cancel", json={}), 200)
        assert (await engine.counts())[State.CANCELLED] == 2
        for path in (f"/groups/{run.id}", f"/flows/{group.id}", "/flows/987654321", "/groups/987654321"):
            problem = answered(await http.get(path), 404)
            assert "task_id" not in problem
            assert str(problem["flow_id" if path.startswith("/flows") else "group_id"]) in path
        assert answered(await http.post("/flows/987654321/cancel", json={}), 404)["flow_id"] == 987654321
        assert [action.verb for action in await engine.audit()] == ["cancel_group", "retry_flow", "cancel_group"]


async def test_a_caller_that_waits_for_a_task_hears_of_its_cancelled_group(engine: Engine) -> None:
    async with engine, client(engine, "operate") as http:
        group = await engine.group("pair", [engine.kinds["greet"].call("c"), engine.kinds["greet"].call("d")])
        waiting = asyncio.gather(*(engine.wait(handle.id, timeout=PATIENCE_SECONDS) for handle in group.handles))
        await asyncio.sleep(0)
        answered(await http.post(f"/groups/{group.id}/cancel", json={"why": "enough"}), 200)
        assert [record.state for record in await waiting] == [State.CANCELLED] * 2


async def test_old_tasks_are_pruned_and_the_retention_is_changed(engine: Engine) -> None:
    async with engine, client(engine) as http:
        task = await engine.kinds["greet"].enqueue("ada")
        await engine.cancel(task.id)
        before = answered(await http.get("/retention"), 200)
        changed = answered(await http.post("/retention", json={"failed": "90d", "succeeded": None}), 200)
        assert changed == {**before, "failed_seconds": 90 * 86400.0, "succeeded_seconds": None}
        answered(await http.post("/retention", json={}), 400)
        answered(await http.post("/prune", json={"failed": None}), 400)
        assert answered(await http.post("/prune", json={}), 200) == {"deleted": 0, "is_done": True}
        assert answered(await http.post("/prune", json={"failed": 0}), 200)["deleted"] == 0
        assert answered(await http.post("/prune", json={"cancelled": 0}), 200)["deleted"] == 1
        first = (await engine.audit())[0]
        assert (first.verb, first.value, first.outcome) == ("prune", {"cancelled": "0 s"}, "1 task deleted")
        answered(await http.post("/prune", json={"failed": "90d"}), 200)
        assert (await engine.audit())[0].value == {"failed": "90 d"}


async def test_the_doctor_tells_what_is_wrong(engine: Engine) -> None:
    async with engine, client(engine) as http:
        found: dict[str, Any] = answered(await http.get("/doctor"), 200)
        assert {kind["kind"] for kind in found["kinds"]} == set(engine.kinds)
        assert found["settings"]["name"]["value"] == engine.settings.name
