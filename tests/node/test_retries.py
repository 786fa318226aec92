"""Bodies that fail, and what they may ask for instead."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import fail_for_good
from tests.support import PATIENCE_SECONDS, SOON, Pace, ended, until_state

from synergon import (
    Cancel,
    Context,
    Discard,
    Engine,
    OptionError,
    Reason,
    Retry,
    RetryAfter,
    Snooze,
    State,
    TaskCancelled,
    TaskFailed,
)

NO_PAUSE = Retry(attempts=3, first=0)


async def test_a_body_that_fails_has_failed_unless_it_may_be_retried(engine: Engine) -> None:
    @engine.task
    async def fail() -> None:
        raise ValueError("no such address")

    async with engine.worker():
        handle = await fail.enqueue()
        with pytest.raises(
            TaskFailed, match=r"task \d+ \(fail\) failed \(error\): ValueError: no such address"
        ) as info:
            await handle.result(PATIENCE_SECONDS)
    record = info.value.record
    assert info.value.task_id == handle.id == record.id
    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert (record.attempts, record.max_attempts) == (1, 1)


async def test_a_body_is_retried_until_it_succeeds(engine: Engine) -> None:
    attempts: list[int] = []

    @engine.task(retry=NO_PAUSE)
    async def fails_twice(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return "at last"

    async with engine.worker():
        handle = await fails_twice.enqueue()
        assert await handle.result(PATIENCE_SECONDS) == "at last"
        record = await handle.status()
    assert attempts == [1, 2, 3]
    assert record.attempts == 3
    assert [(error.attempt, error.message) for error in record.errors] == [(1, "attempt 1"), (2, "attempt 2")]


async def test_a_body_that_fails_as_often_as_it_may_is_exhausted(engine: Engine) -> None:
    ran = 0

    @engine.task(retry=NO_PAUSE)
    async def fail() -> None:
        nonlocal ran
        ran += 1
        raise ValueError("always")

    async with engine.worker():
        record = await ended(await fail.enqueue())
    assert ran == 3
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.EXHAUSTED, 3)
    assert [error.attempt for error in record.errors] == [1, 2, 3]


async def test_retries_wait_longer_each_time(engine: Engine) -> None:
    started: list[float] = []

    @engine.task(retry=Retry(attempts=4, first=0.05, factor=2, jitter=0))
    async def fail() -> None:
        started.append(time.monotonic())
        raise ValueError("always")

    async with engine.worker():
        with Pace() as pace:
            await ended(await fail.enqueue())
    lateness = [
        later - earlier - planned for (earlier, later), planned in zip(pairwise(started), (0.05, 0.1, 0.2), strict=True)
    ]
    assert min(lateness) >= -0.002
    assert statistics.median(lateness) < pace.seconds(SOON)


async def test_a_task_that_waits_for_its_retry_is_scheduled(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=2, first=60, jitter=0))
    async def fail() -> None:
        raise ValueError("once")

    async with engine.worker():
        record = await until_state(await fail.enqueue(), State.SCHEDULED)
    assert record.attempts == 1
    assert record.error is not None
    assert record.error.at is not None
    assert (record.run_at - record.error.at).total_seconds() == 60


async def test_a_call_may_have_a_policy_of_its_own(engine: Engine) -> None:
    ran = 0

    @engine.task
    async def fail() -> None:
        nonlocal ran
        ran += 1
        raise ValueError("always")

    async with engine.worker():
        record = await ended(await fail.with_options(retry=Retry(attempts=4, first=0)).enqueue())
    assert ran == record.attempts == record.max_attempts == 4


async def test_a_function_may_say_how_long_to_wait(engine: Engine) -> None:
    asked: list[int] = []

    def wait(attempt: int) -> float:
        asked.append(attempt)
        return 0.001 * attempt

    @engine.task(retry=Retry(attempts=3, wait=wait))
    async def fail() -> None:
        raise ValueError("always")

    async with engine.worker():
        await ended(await fail.enqueue())
    assert asked == [1, 2]


@pytest.mark.parametrize(
    "wait",
    [
        lambda attempt: -5.0,
        lambda attempt: float("nan"),
        lambda attempt: "soon",
        lambda attempt: 1 / 0,
        lambda attempt: float("inf"),
        lambda attempt: 10**400,
    ],
    ids=["negative", "not a number", "text", "raises", "for ever", "more than a float holds"],
)
async def test_a_wait_function_that_makes_no_sense_loses_no_task(engine: Engine, wait: Callable[[int], float]) -> None:
    @engine.task(retry=Retry(attempts=2, wait=wait, cap=0.01))
    async def fail() -> None:
        raise ValueError("always")

    async with engine.worker():
        handle = await fail.enqueue()
        record = await until_state(handle, State.FAILED, State.SCHEDULED)
        assert record.attempts in (1, 2)
        assert record.errors[0].message.startswith("always")


# ---------------------------------------------------------------- what a body may ask for


async def test_retry_after_says_when_and_costs_an_attempt(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=2, first=60))
    async def busy(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise RetryAfter(0.01, "the server is busy")
        return ctx.attempt

    async with engine.worker():
        handle = await busy.enqueue()
        assert await handle.result(PATIENCE_SECONDS) == 2
        record = await handle.status()
    assert [(error.type, error.message) for error in record.errors] == [("RetryAfter", "the server is busy")]


async def test_retry_after_ends_when_the_budget_does(engine: Engine) -> None:
    ran = 0

    @engine.task(retry=3)
    async def busy() -> None:
        nonlocal ran
        ran += 1
        raise RetryAfter(0)

    async with engine.worker():
        record = await ended(await busy.enqueue())
    assert ran == 3
    assert (record.state, record.reason) == (State.FAILED, Reason.EXHAUSTED)


async def test_a_snooze_costs_no_attempt(engine: Engine) -> None:
    claims: list[int] = []

    @engine.task
    async def wait_for_it(ctx: Context) -> int:
        claims.append(ctx.claim_no)
        if len(claims) < 5:
            raise Snooze(0.005)
        return ctx.attempt

    async with engine.worker():
        handle = await wait_for_it.enqueue()
        assert await handle.result(PATIENCE_SECONDS) == 1
        record = await handle.status()
    assert claims == [1, 2, 3, 4, 5]
    assert (record.attempts, record.errors) == (1, ())


async def test_a_snoozing_task_is_scheduled_with_no_attempt_used(engine: Engine) -> None:
    @engine.task
    async def later() -> None:
        raise Snooze(60)

    async with engine.worker():
        record = await until_state(await later.enqueue(), State.SCHEDULED)
    assert (record.attempts, record.node_id, record.errors) == (0, None, ())


async def test_discard_ends_it_although_attempts_are_left(engine: Engine) -> None:
    @engine.task(retry=5)
    async def give_up() -> None:
        raise Discard("the customer is gone")

    async with engine.worker():
        with pytest.raises(TaskFailed, match="the customer is gone") as failure:
            await (await give_up.enqueue()).result(PATIENCE_SECONDS)
    assert failure.value.record.reason is Reason.DISCARDED
    assert failure.value.record.attempts == 1


async def test_a_body_may_cancel_its_own_task(engine: Engine) -> None:
    @engine.task(retry=5)
    async def change_of_mind() -> None:
        raise Cancel("not needed any more")

    async with engine.worker():
        with pytest.raises(TaskCancelled) as cancelled:
            await (await change_of_mind.enqueue()).result(PATIENCE_SECONDS)
    record = cancelled.value.record
    assert (record.state, record.reason) == (State.CANCELLED, Reason.CANCELLED)
    assert record.error is not None
    assert record.error.message == "not needed any more"


WRAPPED: dict[str, Callable[[Exception], Exception]] = {
    "cause": lambda control: _caused(ValueError("outer"), control),
    "cause of a cause": lambda control: _caused(KeyError("outermost"), _caused(ValueError("outer"), control)),
    "group": lambda control: ExceptionGroup("several", [ValueError("another"), control]),
    "group in a group": lambda control: ExceptionGroup("several", [ExceptionGroup("inner", [control])]),
    "cause of a group's member": lambda control: ExceptionGroup("several", [_caused(ValueError("outer"), control)]),
    "group as a cause": lambda control: _caused(ValueError("outer"), ExceptionGroup("several", [control])),
}


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("wrapping", WRAPPED)
async def test_what_a_body_asks_for_is_found_also_when_it_is_wrapped(engine: Engine, wrapping: str) -> None:
    wrap = WRAPPED[wrapping]

    @engine.task
    async def snooze(ctx: Context) -> int:
        if ctx.claim_no == 1:
            raise wrap(Snooze(0))
        return ctx.attempt

    @engine.task(retry=Retry(attempts=2, first=60))
    async def retry_soon(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise wrap(RetryAfter(0))
        return ctx.attempt

    @engine.task(retry=5)
    async def discard() -> None:
        raise wrap(Discard("no use"))

    @engine.task(retry=5)
    async def cancel() -> None:
        raise wrap(Cancel("no need"))

    async with engine.worker():
        assert await (await snooze.enqueue()).result(PATIENCE_SECONDS) == 1
        assert await (await retry_soon.enqueue()).result(PATIENCE_SECONDS) == 2
        assert (await ended(await discard.enqueue())).reason is Reason.DISCARDED
        assert (await ended(await cancel.enqueue())).state is State.CANCELLED


async def test_plain_functions_may_ask_too(engine: Engine) -> None:
    @engine.task
    def snooze(ctx: Context) -> int:
        if ctx.claim_no < 3:
            raise Snooze(0)
        return ctx.attempt

    @engine.task(retry=5)
    def discard() -> None:
        raise ValueError("outer") from Discard("no use")

    async with engine.worker():
        assert await (await snooze.enqueue()).result(PATIENCE_SECONDS) == 1
        assert (await ended(await discard.enqueue())).reason is Reason.DISCARDED


@pytest.mark.parametrize("pause", [-1, float("nan"), "soon", True, None])
def test_a_pause_that_makes_no_sense_is_refused_where_it_is_asked_for(pause: object) -> None:
    for control in (Snooze, RetryAfter):
        with pytest.raises(ValueError, match=f"{control.__name__} takes a number of seconds .*, got "):
            control(pause)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("control", [Snooze, RetryAfter])
@pytest.mark.parametrize("pause", [1e300, float("inf"), 10**18])
async def test_a_pause_for_ever_is_a_century_at_the_most_and_loses_no_task(
    engine: Engine, control: type[Snooze] | type[RetryAfter], pause: float
) -> None:
    @engine.task(retry=2)
    async def for_ever() -> None:
        raise control(pause)

    @engine.task
    async def neighbour() -> str:
        return "ran"

    async with engine.worker():
        handle = await for_ever.enqueue()
        other = await neighbour.enqueue()
        assert await other.result(PATIENCE_SECONDS) == "ran"
        record = await until_state(handle, State.SCHEDULED)
        assert record.run_at.year > record.enqueued_at.year + 90


async def test_only_errors_of_the_given_types_are_retried(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=3, first=0, on=(ConnectionError,), never=(ConnectionRefusedError,)))
    async def fail(kind: str) -> None:
        raise {"reset": ConnectionResetError, "refused": ConnectionRefusedError, "value": ValueError}[kind](kind)

    async with engine.worker():
        reset, refused, value = await fail.enqueue_many([("reset",), ("refused",), ("value",)])
        assert (await ended(reset)).attempts == 3
        for handle in (refused, value):
            record = await ended(handle)
            assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.ERROR, 1)


async def test_types_of_errors_hold_for_a_call_with_attempts_of_its_own(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=2, first=0, never=(ValueError,)))
    async def fail() -> None:
        raise ValueError("never again")

    async with engine.worker():
        record = await ended(await fail.with_options(retry=Retry(attempts=5, first=0)).enqueue())
    assert (record.attempts, record.max_attempts) == (1, 5)


async def test_types_of_errors_hold_in_a_child_process(engine: Engine) -> None:
    retry = Retry(attempts=3, first=0, never=(KeyError,))
    fail = engine.task(name="fail_for_good", runs_in="process", retry=retry)(fail_for_good.function)
    async with engine.worker():
        record = await ended(await fail.enqueue())
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.ERROR, 1)


def test_types_of_errors_are_checked() -> None:
    assert Retry(on=ConnectionError).on == (ConnectionError,)  # type: ignore[arg-type]  # one type is accepted, too
    for wrong in ("ValueError", (ValueError("no"),), (int,)):
        with pytest.raises(OptionError, match="must be types of errors, like"):
            Retry(never=wrong)  # type: ignore[arg-type]


async def test_types_of_errors_cannot_be_stored_with_a_task(engine: Engine) -> None:
    @engine.task
    async def fail() -> None: ...

    with pytest.raises(OptionError, match="set on= and never= on the decorator"):
        fail.with_options(retry=Retry(never=(ValueError,)))
