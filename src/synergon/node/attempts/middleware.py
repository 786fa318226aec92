"""Runs a task function inside its middleware.

What the outermost middleware returns or raises counts as the result of the task function, wherever the function runs. A
deadline or a cancellation reaches middleware as it reaches a coroutine. Whatever middleware does, the chain waits for a
task function that has started, because the function holds the slot. If middleware returns early, a coroutine is
cancelled and a child process is killed; a thread cannot be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec

from synergon.context import Context
from synergon.errors import PayloadError, SynergonError
from synergon.model.outcomes import Crashed, Failed, HandedBack, Outcome, Refused, Retrying, ServerFault, Succeeded
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.node.attempts.deadlines import Deadlines
from synergon.node.attempts.outcomes import outcome_of_item
from synergon.options.middleware_checks import CallNext

End = tuple[Any, BaseException | None]
"""How a task function or middleware ended: the returned value, or the raised exception."""
TaskFunction = Callable[[], Awaitable[End]]

LAST_SECONDS: Final = 5.0
"""How many seconds middleware may take after its task function has returned, if the end of the attempt was
requested."""


class MiddlewareChain:
    """Runs one task function inside its middleware."""

    _function: TaskFunction

    def __init__(self, attempt: Attempt, context: Context) -> None:
        self._attempt = attempt
        self._context = context
        self._chain = attempt.task_type.around
        self._task = asyncio.current_task()
        self._inside: list[asyncio.Task[Any] | None] = []
        """The asyncio tasks that run `call_next` now. Middleware may have created them."""
        self._is_left = asyncio.Event()
        self._is_over = False
        self._last_moment: asyncio.TimerHandle | None = None
        self.has_left_function: bool = False
        """Whether middleware returned while the task function ran. The function was then ended."""

    async def run(self, function: TaskFunction) -> End:
        """Run the middleware and, inside it, the task function."""
        self._function = function
        self._attempt.asyncio_task = self._task
        try:
            end = await self._run_chain()
            await self._end_function()
            return end
        finally:
            if self._last_moment is not None:
                self._last_moment.cancel()
            self._attempt.asyncio_task = None

    async def _run_chain(self) -> End:
        try:
            return await self._enter(0), None
        except GeneratorExit as error:
            if not asyncio.get_running_loop().is_running():  # it is being torn down
                raise
            return None, error
        except BaseException as error:  # noqa: BLE001  whatever is raised is the outcome
            return None, error
        finally:
            self._is_over = True

    async def _end_function(self) -> None:
        """If middleware returned before the task function, end the function, and wait until it has ended, because it
        holds the slot."""
        if not self._inside:
            return
        self.has_left_function = True
        self._cancel_inner_tasks()
        while self._inside:
            try:
                await self._is_left.wait()
            except asyncio.CancelledError:  # the deadline or a cancellation, which reaches the task function separately
                self._cancel_inner_tasks()

    def _cancel_inner_tasks(self) -> None:
        attempt = self._attempt
        for task in {*self._inside, attempt.asyncio_task} - {self._task}:
            if task is not None:
                task.cancel()
        if attempt.child is not None:
            attempt.child.kill()

    async def _enter(self, depth: int) -> Any:
        if depth == len(self._chain):
            return await self._run_function()
        return await self._chain[depth](self._context, self._once(depth + 1))

    def _once(self, depth: int) -> CallNext:
        was_called = False

        async def call_next() -> Any:
            nonlocal was_called
            if was_called:
                raise SynergonError("call_next was called twice; to have a task run again, raise RetryAfter or Snooze")
            if self._is_over:
                raise SynergonError("call_next was called when the middleware had ended; wait for it inside of it")
            was_called = True
            with self._counted():
                return await self._enter(depth)

        return call_next

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        task = asyncio.current_task()
        self._inside.append(task)
        try:
            yield
        finally:
            self._inside.remove(task)
            if not self._inside:
                self._is_left.set()

    async def _run_function(self) -> Any:
        attempt = self._attempt
        if attempt.stop is not None:  # asked to end at a point where it could not be cancelled
            raise asyncio.CancelledError
        try:
            value, error = await (self._function() if attempt.runs_in == "loop" else self._until_it_ends())
        finally:
            attempt.asyncio_task = self._task
        if error is not None:
            raise error
        if attempt.stop is not None:
            self._limit_remaining_time()
        return value

    def _limit_remaining_time(self) -> None:
        """Called after the task function if the end of the attempt was requested. Cancels the middleware: after
        `LAST_SECONDS` if the function has a valid result, otherwise at once."""
        attempt = self._attempt
        if attempt.has_seen_stop or attempt.stop in (Stop.CANCEL, Stop.TIMEOUT, Stop.LEASE_LOST):
            raise asyncio.CancelledError
        if self._task is not None:
            self._last_moment = asyncio.get_running_loop().call_later(LAST_SECONDS, self._task.cancel)

    async def _until_it_ends(self) -> End:
        """Run a task function in a thread or child process, and wait until it has ended, even if this asyncio task is
        cancelled: a thread cannot be ended, and the pool ends a child process."""
        self._attempt.asyncio_task = None
        doing, cancelled = asyncio.ensure_future(self._begin()), None
        while not doing.done():
            try:
                await asyncio.shield(doing)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None and not doing.cancelled():
            raise cancelled
        return doing.result()

    async def _begin(self) -> End:
        if self._is_over:
            raise asyncio.CancelledError
        return await self._function()


class ChildFunctionEnded(Exception):
    """Raised by `call_next` if a task function in a child process ended without a result."""

    def __init__(self, outcome: Outcome) -> None:
        error = outcome.error if isinstance(outcome, Failed | Retrying | Crashed | ServerFault) else None
        super().__init__(type(outcome).__name__ if error is None else f"{error.type}: {error.message}")
        self.outcome = outcome


def _value_of(attempt: Attempt, outcome: Succeeded) -> Any:
    """The result, decoded to the return type of the task function, or to plain JSON if it does not match that type. For
    a batch, the list of the results of its items, with None for items without a result."""
    if attempt.is_batch:
        ends = [outcome_of_item(item, outcome) for item in attempt.included]
        return [_decoded(attempt, end.result) if isinstance(end, Succeeded) else None for end in ends]
    return _decoded(attempt, outcome.result)


def _decoded(attempt: Attempt, result: bytes | None) -> Any:
    try:
        return attempt.task_type.signature.decode_result(result or b"null")
    except PayloadError:
        return msgspec.json.decode(result or b"null")


async def wrap_child(
    attempt: Attempt,
    context: Context,
    run: Callable[[], Awaitable[Outcome]],
    deadlines: Deadlines,
    judge: Callable[[Any, BaseException | None], Outcome],
) -> Outcome:
    """Run middleware around a task function in a child process. This process gets only the outcome of the function. The
    function has its own deadline; the middleware before it and after it gets the full timeout each."""
    ended: list[tuple[Outcome, Any, ChildFunctionEnded | None]] = []

    async def function() -> End:
        deadlines.disarm(attempt)
        outcome = await run()
        deadlines.arm(attempt)
        if not isinstance(outcome, Succeeded):
            ended.append((outcome, None, ChildFunctionEnded(outcome)))
        else:
            ended.append((outcome, _value_of(attempt, outcome), None))
        return ended[0][1:]

    wrapping = MiddlewareChain(attempt, context)
    deadlines.arm(attempt)
    try:
        value, error = await wrapping.run(function)
    finally:
        deadlines.disarm(attempt)
    if not ended:
        return judge(value, error)
    inner, inner_value, inner_error = ended[0]
    if error is not None and error is inner_error:
        return inner
    if isinstance(inner, Crashed | HandedBack | Refused) and not wrapping.has_left_function:
        return inner
    children = inner.children if isinstance(inner, Succeeded) else ()
    if error is None and value is inner_value and isinstance(inner, Succeeded) and attempt.stop is None:
        return msgspec.structs.replace(inner, children=(*children, *context.children))
    outcome = judge(value, error)
    if isinstance(outcome, Succeeded):
        return msgspec.structs.replace(outcome, children=(*children, *outcome.children))
    return outcome
