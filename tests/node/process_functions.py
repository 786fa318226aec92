"""Bodies for child processes. A child imports this module, so they stand at its top; tests register their functions
anew, each with an engine and options of its own: `on(engine, spin, timeout=1)`."""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from synergon import Batch, BatchErrors, Context, Engine, Retry, RetryAfter, Snooze, TaskLogFilter, TaskType
from synergon.options.overrides import RunsIn

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

engine = Engine("memory://")


def on(
    target: Engine, task_type: TaskType[..., Parameters, Any, Returned], *, runs_in: RunsIn = "process", **options: Any
) -> TaskType[..., Parameters, Any, Returned]:
    """The same function as a kind of another engine, to be run in a child process."""
    registered: TaskType[..., Parameters, Any, Returned] = target.task(runs_in=runs_in, **options)(task_type.function)
    return registered


@engine.task(retry=Retry(attempts=3, first=0, never=(KeyError,)))
def fail_for_good() -> None:
    raise KeyError("for good")


@engine.task
def add(first: int, second: int) -> int:
    return first + second


@engine.task
async def add_slowly(first: int, second: int) -> int:
    return first + second


@engine.task
def process_id() -> int:
    return os.getpid()


@engine.task
def spin(started: str) -> None:
    """Never ends, and never lets go of the interpreter for long."""
    note(started)
    while True:
        pass


@engine.task
def sleep_long(started: str) -> None:
    note(started)
    time.sleep(1000)


@engine.task
def hold(started: str = "") -> int:
    """Short without a file. With one, it runs until the test adds ".go" to its name. Returns the process id."""
    if started:
        note(started)
        while not Path(f"{started}.go").exists():
            time.sleep(0.005)
    return os.getpid()


@engine.task
def fail(message: str) -> None:
    raise ValueError(message)


@engine.task
def snooze_once(ctx: Context) -> int:
    if ctx.claim_no == 1:
        raise ValueError("outer") from Snooze(0)
    return ctx.attempt


@engine.task
def snooze_for_ever() -> None:
    raise Snooze(float("inf"))


@engine.task
def retry_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise RetryAfter(0, "not yet")
    return ctx.attempt


@engine.task
def exits(started: str) -> None:
    note(started)
    os._exit(3)


@engine.task
def crash_until(started: str, times: int) -> int:
    """Kills its own process the first `times` times."""
    note(started)
    runs = Path(started).read_text().count("\n")
    if runs <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return runs


@engine.task
def look_around(ctx: Context, /) -> list[object]:
    ctx.progress(0.5, "half way")
    ctx.progress(1, "there")
    return [ctx.task_id, ctx.attempt, ctx.claim_no, list(ctx.tags), ctx.meta, ctx.still_owned_sync()]


@engine.task
def ask_for_more_time(ctx: Context, seconds: float) -> str:
    ctx.extend_timeout(60)
    time.sleep(seconds)
    return "in time"


@engine.task
def work_until_told_to_leave(ctx: Context) -> str:
    while ctx.still_owned_sync():
        ctx.progress(0.5)
        time.sleep(0.01)
    return "left"


@engine.task
def with_children(ctx: Context, number: int) -> None:
    ctx.enqueue(add.call(number, 1), add.call(number, 2))


@engine.task
def want_transaction(ctx: Context) -> None:
    with ctx.transaction():
        pass


colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@engine.task
def change_colour(name: str) -> str:
    before = colour.get()
    colour.set(name)
    return before


def note(path: str) -> None:
    """Tell the test, which watches this file, that the body has come this far."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


@engine.task
def scheduled_for(ctx: Context) -> str:
    assert ctx.scheduled_for is not None
    return ctx.scheduled_for.isoformat()


@engine.task(batch=Batch(size=2))
def square_all(numbers: list[int], ctx: Context) -> list[int]:
    """Squares, except of 13, which is poison, and of negative numbers, which are errors."""
    ctx.progress(0.5)
    if 13 in numbers:
        os._exit(1)
    wrong = {index: ValueError(f"{number} is negative") for index, number in enumerate(numbers) if number < 0}
    if wrong:
        raise BatchErrors(wrong)
    return [number**2 for number in numbers]


@engine.task
def log_lines(then: str = "end") -> None:
    """Log on each level, then end as asked."""
    logger = logging.getLogger("shop.images")
    logger.debug("on level %s", "debug")
    logger.info("on level %s", "info")
    try:
        raise ValueError("a reason")
    except ValueError:
        logger.exception("on level %s", "error")
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "log later":
        threading.Timer(0.2, logger.warning, ["between two jobs"]).start()


@engine.task
async def wrap_the_error_of_a_transaction(ctx: Context) -> int:
    """Raises an error of its own where there is no transaction."""
    try:
        async with ctx.transaction():
            return os.getpid()
    except Exception as error:
        raise RuntimeError("the application has wrapped it") from error


@engine.task
async def swallow_the_error_of_a_transaction(ctx: Context) -> int:
    """Returns something else where there is no transaction."""
    try:
        async with ctx.transaction():
            return os.getpid()
    except Exception:  # noqa: BLE001  as applications do
        return -1


@engine.task
def log_here(name: str) -> list[object]:
    """What a handler with the filter sees of a record that is made here, and of one with a field of its own."""
    seen: list[object] = []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = vars(record)
            seen.append([record.getMessage(), *(fields.get(field) for field in ("node", "task_id", "kind", "attempt"))])

    handler = Seen()
    handler.addFilter(TaskLogFilter())
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        logger.warning("plain")
        logger.warning("own", extra={"kind": "mine"})
    finally:
        logger.removeHandler(handler)
    return seen


@engine.task(batch=Batch(size=3, wait=60))
def describe_items(rows: list[int], ctx: Context) -> list[Any]:
    return [[item.task_id, item.attempt, item.meta["name"]] for item in ctx.items]
