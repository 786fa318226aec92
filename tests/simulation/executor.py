"""Threads and child processes of a simulated process, as coroutines of the one loop.

A plain function of a simulated kind returns the coroutine that stands for its thread. Nothing can cancel that, except
the death of its process; a child can be killed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synergon.context import AttemptLink, Context, OpenTransaction
from synergon.errors import BatchErrors, Control
from synergon.model.nodes import ProcessIdentity
from synergon.model.outcomes import Progress
from synergon.node.attempts.batch_results import ends_of_items
from synergon.node.attempts.outcomes import describe, find_control
from synergon.node.processes.child_job import BEGINS, ChildAnswer, ChildControl, ChildJob, item_end
from synergon.node.processes.child_pool import ChildDied, ChildKilled, ChildRun
from synergon.node.processes.executors import BackgroundLoop, BackgroundRun

if TYPE_CHECKING:
    from tests.simulation.process import Process

_JOB: Final = msgspec.json.Decoder(ChildJob)

IN_CHILD: Final[ContextVar[bool]] = ContextVar("in_child", default=False)
"""Whether the body that asks runs in a child process."""


class ChildDies(BaseException):
    """Raised by a body that takes its child process down."""


class SimulatedExecutor:
    """Where bodies run that do not run on the node's loop."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._children: dict[Child, None] = {}  # in order: what happens must happen again

    @property
    def identity(self) -> ProcessIdentity:
        return self._process.identity

    def is_gone(self, process: ProcessIdentity) -> bool:
        return self._process.world.is_gone(process.pid)

    async def resources(self) -> dict[str, int]:
        """Nothing that tasks of the simulation would ask for."""
        return {}

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        value, error = function()
        if error is not None or not inspect.iscoroutine(value):
            return value, error
        body = self._process.start(value)
        await asyncio.wait([body])  # it goes on if this is cancelled, as a thread does
        try:
            return body.result(), None
        except BaseException as error:  # noqa: BLE001  whatever the body raised is its outcome
            return None, error

    def start_child(self, job: bytes, on_message: Callable[[bytes], Any], *, fresh: bool) -> ChildRun:
        child = Child(job, on_message, fresh, self._process)
        self._children[child] = None
        return child

    def kill_children(self) -> None:
        for child in self._children:
            child.kill()
        self._children.clear()

    def start_in_background(self, loop: BackgroundLoop) -> BackgroundRun:
        return SimulatedRun(loop)

    def exit_process(self, code: int) -> None:
        self._process.die(f"has exited with {code}")

    async def close(self) -> None:
        self.kill_children()


class SimulatedRun:
    """The lease's loop, beside the node's."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._end = asyncio.Event()
        self._task = asyncio.ensure_future(loop.run(self._end))

    async def stop(self) -> None:
        self._end.set()
        await asyncio.wait([self._task])


class Child(ChildRun):
    """One job in a child process."""

    def __init__(self, job: bytes, on_message: Callable[[bytes], Any], is_fresh: bool, process: Process) -> None:
        super().__init__(job, on_message=on_message, is_fresh=is_fresh)
        self._process = process
        self._begins = on_message
        self._task = process.start_apart(self._perform(_JOB.decode(job)))
        self._task.add_done_callback(self._apply_outcome)

    def kill(self) -> None:
        if not self._task.done():
            self.is_kill_requested = True
            self._task.cancel()

    def _apply_outcome(self, task: asyncio.Task[ChildAnswer]) -> None:
        if task.cancelled():
            self.finish(ChildKilled("the child was killed"))
        elif isinstance(task.exception(), ChildDies):
            self.finish(ChildDied(None, 1))
        else:
            self.finish(msgspec.json.encode(task.result()))

    async def _perform(self, job: ChildJob) -> ChildAnswer:
        IN_CHILD.set(True)
        task_type = self._process.world.kinds[job.kind]
        signature = task_type.signature
        is_batch = signature.list_name is not None
        arguments = (
            signature.join_items(map(signature.decode, job.items)) if is_batch else signature.decode(job.payload)
        )
        context = Context(
            SilentLink(),
            task_id=job.task_id,
            kind=job.kind,
            queue=job.queue,
            attempt=job.attempt,
            claim_no=job.claim_no,
        )
        for name in task_type.signature.injected:
            arguments[name] = context
        self._begins(BEGINS)
        errors: BatchErrors | None = None
        value: Any = None
        try:
            value = await task_type.function(**arguments)
        except BatchErrors as error:
            errors = error
        except Exception as error:  # noqa: BLE001  it is told to the parent
            control = find_control(error)
            if control is not None:
                return ChildAnswer(control=_told(control))
            return ChildAnswer(error=describe(error, job.attempt, None))
        if is_batch:
            ends = ends_of_items(signature, job.kind, len(job.items), value, errors)
            return ChildAnswer(items=tuple(item_end(task_type, end, job.attempt) for end in ends))
        return ChildAnswer(result=task_type.encode_result(value), children=context.children)


class SilentLink(AttemptLink):
    """A child's link to its parent, over which nothing is said."""

    @property
    def cancel_requested(self) -> bool:
        return False

    def report(self, progress: Progress) -> None:
        """Nobody listens."""

    def extend_timeout(self, seconds: float) -> None:
        """Nobody listens."""

    async def still_owned(self) -> bool:
        return True

    def still_owned_sync(self) -> bool:
        return True

    def transaction(self) -> OpenTransaction:
        raise NotImplementedError("simulated bodies have no transactions")


def _told(control: Control) -> ChildControl:
    return ChildControl(type(control).__name__, str(control), getattr(control, "seconds", 0.0))
