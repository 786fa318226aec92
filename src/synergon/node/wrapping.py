"""Bodies with middleware around them.

Promise: what the outermost returns or raises is what the body has returned or raised, wherever the body itself runs.
The deadline and a cancel reach middleware as they reach a coroutine. A body that has begun in a thread or in a child is
waited for, whatever middleware does meanwhile: its slot is its own until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from synergon.context import Context
from synergon.errors import PayloadError, SynergonError
from synergon.middleware import CallNext
from synergon.node.attempt import Attempt
from synergon.node.deadlines import Deadlines
from synergon.records import Crashed, Failed, HandedBack, Outcome, Retrying, Succeeded

End = tuple[Any, BaseException | None]
"""What was returned, or what was raised."""
Body = Callable[[], Awaitable[End]]


class Wrapping:
    """One attempt's body in its middleware."""

    def __init__(self, attempt: Attempt, context: Context, body: Body) -> None:
        self._attempt = attempt
        self._context = context
        self._body = body
        self._chain = attempt.task_type.around
        self._task = asyncio.current_task()

    async def run(self) -> End:
        """Go in and come out again."""
        self._attempt.asyncio_task = self._task
        try:
            return await self._enter(0), None
        except GeneratorExit as error:
            if not asyncio.get_running_loop().is_running():  # it is being torn down
                raise
            return None, error
        except BaseException as error:  # noqa: BLE001  whatever is raised is the outcome
            return None, error
        finally:
            self._attempt.asyncio_task = None

    async def _enter(self, depth: int) -> Any:
        if depth == len(self._chain):
            return await self._run_body()
        return await self._chain[depth](self._context, self._once(depth + 1))

    def _once(self, depth: int) -> CallNext:
        was_called = False

        async def call_next() -> Any:
            nonlocal was_called
            if was_called:
                raise SynergonError("call_next was called twice; to have a task run again, raise RetryAfter or Snooze")
            was_called = True
            return await self._enter(depth)

        return call_next

    async def _run_body(self) -> Any:
        attempt = self._attempt
        self._leave_if_asked()
        try:
            value, error = await (self._body() if attempt.runs_in == "loop" else self._until_it_ends())
        finally:
            attempt.asyncio_task = self._task
        if error is not None:
            raise error
        self._leave_if_asked()
        return value

    def _leave_if_asked(self) -> None:
        """Whoever was asked to end where that could not be done ends here."""
        if self._attempt.stop is not None:
            raise asyncio.CancelledError

    async def _until_it_ends(self) -> End:
        """A thread cannot be made to end, and a child is ended by other means."""
        self._attempt.asyncio_task = None
        doing, cancelled = asyncio.ensure_future(self._body()), None
        while not doing.done():
            try:
                await asyncio.shield(doing)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None and not doing.cancelled():
            raise cancelled
        return doing.result()


class ChildBodyEnded(Exception):
    """Raised by `call_next` where the body in a child process came to anything but a result."""

    def __init__(self, outcome: Outcome) -> None:
        error = outcome.error if isinstance(outcome, Failed | Retrying | Crashed) else None
        super().__init__(type(outcome).__name__ if error is None else f"{error.type}: {error.message}")
        self.outcome = outcome


def _value_of(attempt: Attempt, outcome: Succeeded) -> Any:
    """In the type of the body's annotation, if it fits that."""
    result = outcome.result or b"null"
    try:
        return attempt.task_type.signature.decode_result(result)
    except PayloadError:
        return msgspec.json.decode(result)


async def wrap_child(
    attempt: Attempt,
    context: Context,
    run: Callable[[], Awaitable[Outcome]],
    deadlines: Deadlines,
    judge: Callable[[Any, BaseException | None], Outcome],
) -> Outcome:
    """The same for a body in a child, of which only the outcome comes here. The deadline of the body is its own; what
    is before it and what is after it have as much time each."""
    ended: list[tuple[Outcome, Any, ChildBodyEnded | None]] = []

    async def body() -> End:
        deadlines.disarm(attempt)
        outcome = await run()
        deadlines.arm(attempt)
        if not isinstance(outcome, Succeeded):
            ended.append((outcome, None, ChildBodyEnded(outcome)))
        else:
            ended.append((outcome, _value_of(attempt, outcome), None))
        return ended[0][1:]

    deadlines.arm(attempt)
    try:
        value, error = await Wrapping(attempt, context, body).run()
    finally:
        deadlines.disarm(attempt)
    if not ended:
        return judge(value, error)
    inner, inner_value, inner_error = ended[0]
    if isinstance(inner, Crashed | HandedBack) or (error is not None and error is inner_error):
        return inner
    children = inner.children if isinstance(inner, Succeeded) else ()
    if error is None and value is inner_value and isinstance(inner, Succeeded) and attempt.stop is None:
        return msgspec.structs.replace(inner, children=(*children, *context.children))
    outcome = judge(value, error)
    if isinstance(outcome, Succeeded):
        return msgspec.structs.replace(outcome, children=(*children, *outcome.children))
    return outcome
