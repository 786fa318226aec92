"""The route of events: final states of tasks as server-sent events, from all nodes, without gaps.

Every event has its cursor as `id`. A client that connects again sends the last one as `Last-Event-ID`, and misses
nothing. Comments keep the connection open. The caller is checked again from time to time: a stream ends soon after its
token is revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, Literal

import msgspec
from starlette.responses import StreamingResponse

from synergon.errors import SynergonError
from synergon.model.events import Event
from synergon.web.access import Role
from synergon.web.json_text import encode
from synergon.web.problems import Problem, problem_of
from synergon.web.routes import ApiCall, Route

MEDIA_TYPE: Final = "text/event-stream"
COMMENT_SECONDS: Final = 15.0
"""How often a stream without events sends a comment, and checks its caller again."""
RETRY_MILLISECONDS: Final = 3000
MOST_STREAMS: Final = 50
"""How many streams are open at once."""
CURSOR_LENGTH: Final = 200

_streams: Final[set[object]] = set()
"""One entry for each open stream."""


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events the stream has."""

    kind: tuple[str, ...] | None = None
    state: tuple[Literal["succeeded", "failed", "cancelled"], ...] | None = None
    after: str | None = None
    """The cursor to start after, if there is no `Last-Event-ID`. Without both, the stream starts now."""


async def stream_events(call: ApiCall) -> Any:
    """Final states of tasks as server-sent events. With `Last-Event-ID` the stream goes on after that event."""
    query: EventQuery = call.query
    after = call.request.headers.get("last-event-id") or query.after or "now"
    if len(after) > CURSOR_LENGTH:
        raise Problem(400, "this cursor is none of an event")
    if len(_streams) >= MOST_STREAMS:
        raise Problem(503, f"{MOST_STREAMS} streams are open; close one", headers={"Retry-After": "5"})
    sweep_seconds = call.engine.settings.sweep
    events = await call.engine._events.open(after, query.kind, query.state, sweep_seconds)
    return StreamingResponse(_lines(call, events), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})


async def _lines(call: ApiCall, events: AsyncGenerator[Event, None]) -> AsyncIterator[bytes]:
    """The lines of the stream, until the client disconnects or may no longer read."""
    stream, loop = object(), asyncio.get_running_loop()
    _streams.add(stream)
    checked_at = loop.time()
    following: asyncio.Task[Event] | None = None
    try:
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        while True:
            following = following or asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait([following], timeout=COMMENT_SECONDS)
            if loop.time() - checked_at >= COMMENT_SECONDS:
                await call.access.permit(call.request, Role.READ)
                checked_at = loop.time()
            if done:
                event, following = following.result(), None
                yield _event_lines(call, event)
            else:
                yield b": no events\n\n"
    except Problem as problem:
        yield _problem_lines(problem)
    except SynergonError as error:  # events were lost, or the engine was closed
        yield _problem_lines(problem_of(error))
    finally:
        _streams.discard(stream)
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait([following])
        await events.aclose()


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


def _event_lines(call: ApiCall, event: Event) -> bytes:
    document = event.as_dict() | {"title": call.redactor.title(event.kind, event.title)}
    del document["tags"]  # a tag may contain a hidden argument, and the arguments are not at hand
    return f"id: {event.cursor}\nevent: {event.name}\ndata: ".encode() + encode(document) + b"\n\n"


def _problem_lines(problem: Problem) -> bytes:
    return b"event: problem\ndata: " + encode(problem.document()) + b"\n\n"


ROUTES: Final = (
    Route(
        method="GET",
        role=Role.READ,
        path="/events",
        handle=stream_events,
        query=EventQuery,
        answer=str,
        media_type=MEDIA_TYPE,
        problems=(503,),
    ),
)
