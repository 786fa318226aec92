"""Bad input: right status codes, clear errors, nothing changed. And thousands of requests, changed at random."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pytest
from tests.web.web_support import HOST, JSON, answered, by_header, client, register_kinds

from synergon import Engine, State
from synergon.errors import StoreUnavailable
from synergon.stores.memory.store import MemoryStore
from synergon.web import app as app_module
from synergon.web import inputs
from synergon.web.app import make_app
from synergon.web.routes import PREFIX
from synergon.web.tables import ROUTES

IS_LONG_RUN = bool(os.environ.get("SYNERGON_LONG"))
MUTATED: Final = 100_000 if IS_LONG_RUN else 3000


@pytest.fixture
def url(memory_url: str) -> str:
    return memory_url


@pytest.fixture(autouse=True)
def _kinds(engine: Engine) -> None:
    register_kinds(engine)


@pytest.mark.parametrize(
    "query",
    [
        "state=sleeping",
        "colour=red",
        "limit=0",
        "limit=201",
        "limit=ten",
        "after=nonsense",
        "after=1&after=2",
        "queue=a&queue=b",
        "sort=name",
        "sort=end&state=ready",
        "ascending=perhaps",
        "enqueued_since=yesterday",
        "enqueued_since=2026-01-01T00:00:00",
        "enqueued_since=0001-01-01T00:00:00Z",
        "meta=customer",
        "meta=customer=[1]",
        "search=",
        "flow=0",
        "parent=ada",
        "node=%00",
        "queue=%00",
        "tag=%ED%A0%80",
    ],
)
async def test_a_bad_filter_or_cursor_is_400_with_its_reason(engine: Engine, query: str) -> None:
    async with engine, client(engine, "read") as http:
        response = await http.get(f"/tasks?{query}")
        if query.startswith("tag="):  # the web server has replaced what is no text
            answered(response, 200)
        else:
            assert answered(response, 400)["detail"]


@pytest.mark.parametrize("task_id", ["0", "987654321", "9" * 40])
async def test_an_unknown_id_is_404(engine: Engine, task_id: str) -> None:
    async with engine, client(engine) as http:
        for path in ("", "/explanation"):
            answered(await http.get(f"/tasks/{task_id}{path}"), 404)
        for path, body in (("cancel", {}), ("retry", {}), ("priority", {"priority": 1}), ("timeout", {"extend": 1})):
            answered(await http.post(f"/tasks/{task_id}/{path}", json=body), 404)
        answered(await http.post(f"/tasks/{task_id}/meta", json={"values": {"a": 1}}), 404)
        answered(await http.post(f"/tasks/{task_id}/reschedule", json={"delay": 1}), 404)
        answered(await http.delete(f"/tasks/{task_id}"), 404)
        for path in ("/tasks/abc", "/tasks/-1", "/tasks/1.5", "/nothing", "/tasks/1/"):
            answered(await http.get(path), 404)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tasks/1/cancel", b"{"),
        ("/tasks/1/cancel", b"[]"),
        ("/tasks/1/cancel", b"null"),
        ("/tasks/1/cancel", b'{"why": 5}'),
        ("/tasks/1/cancel", b'{"reason": "x"}'),
        ("/tasks/1/cancel", b"\xff\xfe"),
        ("/tasks/1/cancel", b"[" * 100_000),
        ("/tasks/1/priority", b"{}"),
        ("/tasks/1/priority", b'{"priority": 1e400}'),
        ("/tasks/1/priority", b'{"priority": 99999999999999999999}'),
        ("/tasks/1/priority", b'{"priority": "high"}'),
        ("/tasks/1/reschedule", b"{}"),
        ("/tasks/1/reschedule", b'{"delay": "1h", "run_at": "2030-01-01T00:00:00Z"}'),
        ("/tasks/1/reschedule", b'{"delay": -1}'),
        ("/tasks/1/timeout", b'{"extend": 0}'),
        ("/tasks/cancel", b"{}"),
        ("/tasks/cancel", b'{"filter": {"state": ["succeeded"]}}'),
        ("/tasks/retry", b'{"filter": {"colour": "red"}}'),
        ("/tasks/retry", b'{"filter": {"meta": {"a": []}}}'),
        ("/limits/gpu", b'{"rate": {"count": 0, "per": 1}}'),
        ("/limits/gpu", b'{"rate": {"count": 1, "per": "soon"}}'),
        ("/providers/models/servers", b'{"servers": {"not an address": 1}}'),
        (f"/queues/{'x' * 300}/pause", b"{}"),
        ("/retention", b'{"failed": "soon"}'),
    ],
)
async def test_a_bad_body_is_400_and_changes_nothing(engine: Engine, path: str, body: bytes) -> None:
    async with engine, client(engine) as http:
        task = await engine.kinds["greet"].enqueue("ada")
        response = await http.post(path.replace("/1/", f"/{task.id}/"), content=body, headers=JSON)
        assert answered(response, 400)["detail"]
        assert (await task.status()).state is State.READY
        assert await engine.audit() == []


async def test_metadata_that_is_too_large_is_422(engine: Engine) -> None:
    async with engine, client(engine) as http:
        task = await engine.kinds["greet"].enqueue("ada")
        half = {"values": {"a": "x" * 700_000}}
        answered(await http.post(f"/tasks/{task.id}/meta", json=half), 200)
        more = {"values": {"b": "x" * 700_000}}
        answered(await http.post(f"/tasks/{task.id}/meta", json=more), 422)
        assert set((await task.status()).meta) == {"a"}


async def test_a_body_of_100_megabytes_is_refused_without_reading_it(engine: Engine) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b"x" * 1_000_000

    async with engine, client(engine) as http:
        refused = await http.post("/tasks/cancel", content=b"", headers={**JSON, "Content-Length": "100000000"})
        assert str(inputs.BODY_BYTES) in answered(refused, 413)["detail"]
        answered(await http.post("/kinds/greet/tasks", content=endless(), headers=JSON), 413)
        assert sent <= 3, "the rest of the body was not read"
        assert not await engine.tasks()


async def test_long_headers_and_queries_are_refused(engine: Engine) -> None:
    async with engine, client(engine) as http:
        answered(await http.get("/queues", headers={"X-Long": "x" * 20_000}), 431)
        answered(await http.get("/queues?" + "x" * 10_000), 414)


async def test_a_body_that_does_not_arrive_is_not_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "BODY_SECONDS", 0.01)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with engine, client(engine) as http:
        answered(await http.post("/tasks/cancel", content=stuck(), headers=JSON), 408)


async def test_an_answer_that_takes_too_long_is_given_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "ANSWER_SECONDS", 0.01)

    async def slow(*_: Any) -> Any:
        await asyncio.sleep(60)

    async with engine, client(engine) as http:
        monkeypatch.setattr(MemoryStore, "queues", slow)
        assert "ask for less" in answered(await http.get("/queues"), 504)["detail"]


async def test_a_database_that_is_away_is_503_without_its_address(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: Any) -> Any:
        raise StoreUnavailable("db.internal:5432 does not answer")

    async with engine, client(engine, "read") as http:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryStore, "queues", away)
            response = await http.get("/queues")
        assert "db.internal" not in response.text
        assert "unavailable" in answered(response, 503)["detail"]
        assert response.headers["retry-after"] == "5"
        assert "db.internal:5432" in caplog.text
        answered(await http.get("/queues"), 200)


async def test_a_fault_of_the_server_is_500_without_its_text(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("hunter22")

    async with engine, client(engine, "read") as http:
        monkeypatch.setattr(MemoryStore, "queues", broken)
        response = await http.get("/queues")
        assert "hunter22" not in response.text
        assert "log" in answered(response, 500)["detail"]
        assert "hunter22" in caplog.text


async def test_without_a_connected_engine_the_answer_is_503(engine: Engine) -> None:
    async with client(engine, "read") as http:
        answered(await http.get("/queues"), 503)


# ---------------------------------------------------------------- mutated requests

PIECES: Final = [
    *("", "0", "1", "-1", "9" * 30, "null", "true", "[]", "{}", '"', "'", "\\", "/", "//", "..", "%", "%00", "%2F"),
    *("\0", "\n", "\r\n", "é", "😀", "\udc80", "<script>", "'; DROP TABLE task; --", "{0}", "{name.__class__}"),
    *("ready", "failed", "admin", "x" * 300, "2030-01-01T00:00:00Z", "1h", "NaN", "1e400", '{"a":' * 50, "*", "&a=b"),
]
BODIES: Final = {
    "/tasks/{task_id:int}/cancel": '{"why": "x"}',
    "/tasks/{task_id:int}/priority": '{"priority": 5}',
    "/tasks/{task_id:int}/reschedule": '{"delay": "1h"}',
    "/tasks/{task_id:int}/timeout": '{"extend": 600}',
    "/tasks/{task_id:int}/meta": '{"values": {"a": [1, {"b": null}]}}',
    "/tasks/cancel": '{"filter": {"kind": ["greet"], "meta": {"a": 1}}, "why": "x"}',
    "/tasks/retry": '{"filter": {"state": ["cancelled"], "title": "n1"}}',
    "/tasks/delete": '{"filter": {"kind": ["greet"], "search": "n"}, "dry_run": true}',
    "/tasks/reschedule": '{"all": true, "run_at": "2030-01-01T00:00:00Z"}',
    "/tasks/priority": '{"filter": {"queue": "default"}, "priority": 7}',
    "/kinds/{kind}/tasks": '{"arguments": {"name": "ada", "times": 2}, "options": {"tags": ["a"], "key": "k"}}',
    "/limits/{name:path}": '{"value": 3, "rate": {"count": 1, "per": "1s"}}',
    "/providers/{name}/servers": '{"servers": {"http://gpu1:8000": 1}}',
    "/providers/{name}/servers/add": '{"address": "http://gpu2:8000", "capacity": 2}',
    "/providers/{name}/servers/remove": '{"address": "http://gpu2:8000"}',
    "/providers/{name}/servers/close": '{"address": "http://gpu1:8000"}',
    "/retention": '{"failed": "90d", "cancelled": null}',
    "/prune": '{"cancelled": "1h"}',
}
NAMES: Final = [
    "state",
    "kind",
    "limit",
    "after",
    "meta",
    "search",
    "sort",
    "title",
    "enqueued_since",
    "before",
    "number",
]


def mutated(text: str, chance: random.Random) -> str:
    """The text with a piece of it removed, doubled or replaced."""
    start = chance.randrange(len(text) + 1)
    end = min(len(text), start + chance.randrange(6))
    return text[:start] + chance.choice([chance.choice(PIECES), text[start:end] * 2, ""]) + text[end:]


@dataclass
class Mutant:
    """A request as a web server hands it to the app."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    async def send(self, app: Any) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and body of the answer."""
        raw = self.target.encode("utf-8", "surrogatepass")
        path, _, query = raw.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "root_path": "",
            "scheme": "http",
            "query_string": query,
            "headers": [
                (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in self.headers.items()
            ],
            "client": ("10.0.0.7", 1),
            "server": (HOST, 80),
        }
        answer: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": self.body, "more_body": False}

        async def send(message: Any) -> None:
            answer.append(message)

        await app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in answer[0]["headers"]}
        return answer[0]["status"], headers, b"".join(message.get("body", b"") for message in answer[1:])


def mutant(chance: random.Random) -> Mutant:
    """A request of some route, changed at random."""
    route = chance.choice([route for route in ROUTES if route.path != "/events"])
    path = PREFIX + route.path
    for name in ("task_id", "flow_id", "group_id"):
        path = path.replace(f"{{{name}:int}}", str(chance.randrange(1, 12)))
    for name in ("{name:path}", "{name}", "{kind}", "{node_id}"):
        usual = {"/queues": "default", "/limits": "gpu", "/providers": "models", "/schedules": "hourly"}
        known = next((word for start, word in usual.items() if route.path.startswith(start)), "greet")
        path = path.replace(name, chance.choice([known] * 20 + PIECES))
    query = "&".join(f"{chance.choice(NAMES)}={chance.choice(PIECES)}" for _ in range(chance.choice([0, 0, 0, 0, 1])))
    target = f"{path}?{query}" if query else path
    if chance.random() < 0.3:
        target = mutated(target, chance)
    body = BODIES.get(route.path, "{}")
    if chance.random() < 0.6:
        body = mutated(body, chance)
    headers = {"Host": HOST, "Content-Type": "application/json", "X-Role": "admin"}
    if chance.random() < 0.2:
        name = chance.choice(["Content-Type", "Idempotency-Key", "Origin", "Host", "Authorization", "Content-Length"])
        headers[name] = chance.choice(PIECES)
    method = chance.choice([route.method] * 20 + ["PUT", "POST", "DELETE", "HEAD"])
    return Mutant(method, target, headers, body.encode("utf-8", "surrogatepass"))


@pytest.mark.timeout(900 if IS_LONG_RUN else 120)
async def test_no_mutated_request_harms_the_server(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(20261118)
    app = make_app(engine, auth=by_header)
    statuses: Counter[int] = Counter()
    async with engine:
        await engine.schedules.create("hourly", engine.kinds["greet"].call("ada"), every="1h")
        for number in range(MUTATED):
            if number % 100 == 0:
                await engine.kinds["greet"].enqueue(f"n{number}")
            request = mutant(chance)
            status, headers, body = await request.send(app)
            statuses[status] += 1
            assert status < 500, (request, body)
            if status >= 400 and request.method != "HEAD":
                assert headers["content-type"] == "application/problem+json", (request, body)
                assert msgspec.json.decode(body)["status"] == status, (request, body)
        assert statuses[200] > MUTATED / 6, statuses
        assert {201, 400, 403, 404, 405, 409, 415} <= statuses.keys(), statuses
        assert "Traceback" not in caplog.text
        async with client(engine) as http:
            answered(await http.get("/status"), 200)
