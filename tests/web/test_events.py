"""Server-sent events: in order, without gaps after `Last-Event-ID`, and ended when the caller may no longer read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS
from tests.web.web_support import answered, by_header, client, register_kinds

from synergon import Engine
from synergon.web import event_routes
from synergon.web.access import User
from synergon.web.app import make_app


@pytest.fixture
def engine(new_engine: NewEngine, url: str) -> Engine:
    """It finds events that another engine does not announce soon."""
    return new_engine(url, sweep=0.05)


class Stream:
    """An open request for events, as a web server makes it."""

    def __init__(self) -> None:
        self.disconnected = asyncio.Event()
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.status = 0
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            await self._parts.put(message)

    async def part(self) -> str:
        """The next part of the answer. Empty at its end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            message = await self._parts.get()
        text: str = message.get("body", b"").decode()
        return text

    async def event(self) -> dict[str, str]:
        """The next event, by field."""
        while True:
            text = await self.part()
            assert text, "the stream has ended"
            fields = dict(line.split(": ", 1) for line in text.strip().splitlines() if not line.startswith(":"))
            if "data" in fields:
                return fields


@asynccontextmanager
async def stream(app: Any, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    opened = Stream()
    sent = {"host": "tasks.example.com", "x-role": "read", **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/api/v1/events",
        "raw_path": b"/api/v1/events",
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "client": ("10.0.0.7", 1),
        "server": ("tasks.example.com", 80),
    }
    answering = asyncio.create_task(app(scope, opened.receive, opened.send))
    try:
        yield opened
    finally:
        opened.disconnected.set()
        answering.cancel()
        await asyncio.wait([answering])


async def test_events_arrive_in_order_and_go_on_after_the_last_one(engine: Engine) -> None:
    register_kinds(engine)
    async with engine:
        app = make_app(engine, auth=by_header)
        greet = engine.kinds["greet"]
        ids = []
        async with stream(app) as opened:
            assert (await opened.part()).startswith("retry: ")
            for number in range(3):
                ids.append((await greet.with_options(tags=[f"of n{number}"]).enqueue(f"n{number}")).id)
                await engine.cancel(ids[-1])
            events = [await opened.event() for _ in ids]
        assert [event["event"] for event in events] == ["cancelled"] * 3
        documents = [msgspec.json.decode(event["data"]) for event in events]
        assert [document["task_id"] for document in documents] == ids
        assert [document["cursor"] for document in documents] == [event["id"] for event in events]
        assert documents[0]["title"] == "Greet n0"
        assert "tags" not in documents[0], "tags may contain hidden arguments"
        async with stream(app, **{"Last-Event-ID": events[0]["id"]}) as opened:
            later = [await opened.event() for _ in ids[1:]]
        assert [event["id"] for event in later] == [event["id"] for event in events[1:]]
        assert not event_routes._streams


async def test_events_of_some_kinds_and_states(engine: Engine) -> None:
    register_kinds(engine)
    async with engine:
        app = make_app(engine, auth=by_header)
        async with stream(app, "kind=invoice&state=cancelled") as opened:
            await opened.part()
            for task in (await engine.kinds["greet"].enqueue("ada"), await engine.kinds["invoice"].enqueue("acme")):
                await engine.cancel(task.id)
            assert msgspec.json.decode((await opened.event())["data"])["kind"] == "invoice"


@pytest.mark.parametrize(
    "query", ["after=nonsense", "after=12345678.nonsense", f"after={'x' * 500}", "state=ready", "kind=", "colour=red"]
)
async def test_a_bad_cursor_or_filter_is_an_error_and_no_stream(engine: Engine, query: str) -> None:
    async with engine, client(engine, "read") as http:
        answered(await http.get(f"/events?{query}"), 400)
        answered(await http.get("/events", headers={"Last-Event-ID": "nonsense"}), 400)


async def test_a_stream_ends_soon_after_its_caller_is_revoked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "COMMENT_SECONDS", 0.01)
    is_known = True

    def auth(request: Any) -> User | None:
        return by_header(request) if is_known else None

    async with engine, stream(make_app(engine, auth=auth)) as opened:
        await opened.part()
        assert await opened.part() == ": no events\n\n"
        is_known = False
        event = await opened.event()
        assert (event["event"], msgspec.json.decode(event["data"])["status"]) == ("problem", 401)
        assert await opened.part() == ""


async def test_only_so_many_streams_are_open(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "MOST_STREAMS", 1)
    async with engine, client(engine, "read") as http, stream(make_app(engine, auth=by_header)) as opened:
        await opened.part()
        answered(await http.get("/events"), 503)
