"""Operations on all tasks that match, on every store: their progress, and those that concern one error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS
from tests.web.web_support import answered, client, register_kinds

from synergon import Engine, Retry, State
from synergon.client import bulk
from synergon.errors import StoreUnavailable
from synergon.model.tasks import Moved
from synergon.web import background
from synergon.web.bulk_routes import LINES

WITH_LINES = {"Accept": LINES}


@pytest.fixture(autouse=True)
def _kinds(engine: Engine) -> None:
    register_kinds(engine)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in text.splitlines()]


async def test_a_caller_that_accepts_lines_gets_one_after_each_transaction(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    async with engine, client(engine, "operate") as http:
        await engine.kinds["greet"].enqueue_many([(f"n{number}",) for number in range(5)])
        response = await http.post("/tasks/cancel", json={"all": True}, headers=WITH_LINES)
        assert response.headers["content-type"] == LINES
        *progress, last = lines_of(response.text)
        assert last == {"matching": None, "visited": 5, "changed": 5, "is_done": True}
        visited = [line["visited"] for line in progress]
        assert visited == sorted(visited)
        assert {0, 2, 4, 5} >= set(visited)
        assert all(line["changed"] == line["visited"] and not line["is_done"] for line in progress)
        (entry,) = await engine.audit()
        assert (entry.outcome, entry.who) == ("5 tasks cancelled", "operate-user@10.0.0.7")


async def test_what_stops_an_operation_is_its_last_line(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    async with engine, client(engine, "operate") as http:
        await engine.kinds["greet"].enqueue_many([(f"n{number}",) for number in range(5)])
        cancel, calls = type(engine._store).cancel, 0

        async def fails_at_last(store: Any, ids: Sequence[int], why: str | None = None) -> list[Moved]:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise StoreUnavailable("db.internal:5432 does not answer")
            return await cancel(store, ids, why)

        monkeypatch.setattr(type(engine._store), "cancel", fails_at_last)
        response = await http.post("/tasks/cancel", json={"all": True}, headers=WITH_LINES)
        last = lines_of(response.text)[-1]
        assert (last["status"], last["detail"]) == (503, "the database is unavailable; try again in a moment")
        assert "db.internal" not in response.text
        (entry,) = await engine.audit()
        assert entry.outcome == "stopped by StoreUnavailable after 4 tasks"


async def test_an_operation_goes_on_when_its_reader_leaves(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 1)
    async with engine, client(engine, "operate") as http:
        await engine.kinds["greet"].enqueue_many([(f"n{number}",) for number in range(3)])
        apply, go_on = engine._bulk.apply, asyncio.Event()

        async def late(*arguments: Any) -> int:
            await go_on.wait()
            return await apply(*arguments)

        monkeypatch.setattr("synergon.client.bulk.Bulk.apply", lambda _bulk, *arguments: late(*arguments))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await http.post("/tasks/cancel", json={"all": True}, headers=WITH_LINES)
        (running,) = background.RUNNING
        go_on.set()
        assert await running == 3


@pytest.fixture
async def failed(engine: Engine) -> AsyncIterator[dict[str, list[int]]]:
    """Tasks that have failed, by what they failed with."""

    @engine.task(retry=Retry(attempts=1), title="Charge {order}")
    async def charge(order: int) -> None:
        if order == 99:
            raise ValueError(f"order {order} is unknown")
        raise ConnectionError(f"gateway answered 502 for order {order} of '{order}@example.com'")

    @engine.task(retry=Retry(attempts=1), redact=["pin"])
    async def unlock(pin: str) -> None:
        raise ValueError(f"wrong code {pin}")

    async with engine.worker():
        found = {
            "gateway": [(await charge.enqueue(order)).id for order in (1, 22, 333)],
            "unknown": [(await charge.enqueue(99)).id],
            "code": [(await unlock.enqueue(pin)).id for pin in ("abcdefgh", "ijklmnop")],
        }
        for task_id in (one for ids in found.values() for one in ids):
            assert (await engine.wait(task_id, timeout=PATIENCE_SECONDS)).state is State.FAILED
        expired = await engine.kinds["greet"].with_options(delay="1h").enqueue("ada")
        await engine.cancel(expired.id)
        yield found


async def test_failed_tasks_are_grouped_by_their_error(engine: Engine, failed: dict[str, list[int]]) -> None:
    async with client(engine, "read") as http:
        found = answered(await http.get("/errors"), 200)
        assert (found["grouped"], found["is_cut"]) == (6, False)
        gateway, code, unknown = found["errors"]
        assert (gateway["type"], gateway["message"]) == ("ConnectionError", "gateway answered # for order # of '…'")
        assert (gateway["count"], gateway["kinds"]) == (3, {"charge": 3})
        assert (gateway["newest"]["id"], gateway["newest"]["title"]) == (failed["gateway"][-1], "Charge 333")
        assert gateway["first_at"] <= gateway["newest"]["finished_at"] <= gateway["last_at"]
        assert unknown["message"] == "order # is unknown"
        assert (code["count"], code["message"]) == (2, "wrong code [redacted]")
        assert "abcdefgh" not in str(found)
        for query, counts in (
            ({"kind": "unlock"}, [2]),
            ({"error": gateway["fingerprint"]}, [3]),
            ({"search": "for order 22 of"}, [1]),
            ({"state": "cancelled"}, [1]),
            ({"flow": 5}, []),
        ):
            groups = answered(await http.get("/errors", params=query), 200)["errors"]
            assert [group["count"] for group in groups] == counts, query


async def test_only_the_newest_tasks_are_grouped(
    engine: Engine, failed: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.web.error_routes.MOST_GROUPED", 3)
    async with client(engine, "read") as http:
        found = answered(await http.get("/errors"), 200)
        assert (found["grouped"], found["is_cut"]) == (3, True)
        assert [error["count"] for error in found["errors"]] == [2, 1]


async def test_the_tasks_of_one_error_are_listed_and_retried(engine: Engine, failed: dict[str, list[int]]) -> None:
    async with client(engine, "operate") as http:
        gateway, code, _ = answered(await http.get("/errors"), 200)["errors"]
        for error, ids in ((gateway, failed["gateway"]), (code, failed["code"])):
            query = {"state": "failed", "error": error["fingerprint"]}
            found = answered(await http.get("/tasks", params=query), 200)
            assert [task["id"] for task in found["tasks"]] == ids[::-1]
        body = {"filter": {"error": gateway["fingerprint"]}}
        assert answered(await http.post("/tasks/retry", json=body | {"dry_run": True}), 200)["matching"] == 3
        before = (await engine.get(failed["unknown"][0])).claim_no
        assert answered(await http.post("/tasks/retry", json=body), 200)["changed"] == 3
        (entry, *_) = await engine.audit()
        assert entry.subject == f"state=failed error={gateway['fingerprint']}"
        assert (await engine.get(failed["unknown"][0])).claim_no == before
        none = answered(await http.post("/tasks/retry", json={"filter": {"error": "none"}}), 200)
        assert none["changed"] == 0
