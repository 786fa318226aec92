"""The pool of child processes, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from tests.node.children_support import ENTRY, has_ended_soon
from tests.support import PATIENCE_SECONDS

from synergon.errors import NotConnected, OptionError
from synergon.node.processes import child_process
from synergon.node.processes.child_main import BadFrame, Frame, FrameReader, Kind
from synergon.node.processes.child_pool import ChildDied, ChildError, ChildKilled, ChildNotStarted, ChildPool, ChildRun

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_pool() -> AsyncIterator[ChildPool]:
    """One pool for most tests: starting children takes its time, and whatever the tests do, it must live on."""
    pool = ChildPool(entry=ENTRY)
    yield pool
    await pool.close()


@pytest_asyncio.fixture(loop_scope="module")
async def new_pool() -> AsyncIterator[Callable[..., ChildPool]]:
    pools: list[ChildPool] = []

    def make(**options: object) -> ChildPool:
        pools.append(ChildPool(**{"entry": ENTRY, **options}))  # type: ignore[arg-type]  # they fit
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


@pytest.fixture
def own_pool(new_pool: Callable[..., ChildPool]) -> ChildPool:
    return new_pool()


async def do(pool: ChildPool, job: bytes) -> bytes:
    return await pool.start(job).result()


async def start_and_hear(pool: ChildPool, job: bytes) -> tuple[ChildRun, bytes]:
    """A running job and the first thing it says."""
    first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    run = pool.start(job, on_message=lambda message: None if first.done() else first.set_result(message))
    return run, await first


# ---------------------------------------------------------------- jobs and answers


async def test_a_job_is_answered(shared_pool: ChildPool) -> None:
    assert await do(shared_pool, b"echo hello") == b"hello"


async def test_an_idle_child_is_reused(own_pool: ChildPool) -> None:
    first = await do(own_pool, b"pid")
    assert (own_pool.idle, own_pool.busy) == (1, 0)
    run = own_pool.start(b"pid")
    assert (own_pool.idle, own_pool.busy) == (0, 1)
    assert await run.result() == first


async def test_concurrent_jobs_run_in_separate_children(own_pool: ChildPool) -> None:
    runs = [own_pool.start(b"wait_for_note go") for _ in range(3)]
    for run in runs:
        run.notify(b"go")
    assert [await run.result() for run in runs] == [b"go"] * 3
    assert own_pool.idle == 3


async def test_a_warm_child_answers_far_sooner_than_a_child_starts(own_pool: ChildPool) -> None:
    durations = []
    for _ in range(200):
        began = time.perf_counter()
        await do(own_pool, b"echo again")
        durations.append(time.perf_counter() - began)
    started, *warm = durations
    assert statistics.median(warm) < started / 10


async def test_an_answer_may_be_huge(shared_pool: ChildPool) -> None:
    assert await do(shared_pool, b"large 5000000") == b"x" * 5_000_000


async def test_a_job_may_be_huge(shared_pool: ChildPool) -> None:
    assert await do(shared_pool, b"echo " + b"x" * 5_000_000) == b"x" * 5_000_000


async def test_cancelling_the_wait_does_not_stop_the_job(shared_pool: ChildPool) -> None:
    run, _ = await start_and_hear(shared_pool, b"wait_for_note go")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.result(), 0.01)
    run.notify(b"go")
    assert await run.result() == b"go"
    assert await run.result() == b"go"


# ---------------------------------------------------------------- talk


async def test_messages_arrive_in_order_and_before_the_answer(shared_pool: ChildPool) -> None:
    heard: list[bytes] = []
    assert await shared_pool.start(b"flood 10000", on_message=heard.append).result() == b"done"
    assert heard == [str(number).encode() for number in range(10_000)]


async def test_threads_of_a_job_do_not_mix_up_their_messages(shared_pool: ChildPool) -> None:
    heard: list[bytes] = []
    await shared_pool.start(b"flood_from_threads 500", on_message=heard.append).result()
    assert sorted(heard, key=int) == [str(number).encode() for number in range(500) for _ in range(4)]


async def test_messages_without_a_callback_are_dropped(shared_pool: ChildPool) -> None:
    assert await do(shared_pool, b"flood 100") == b"done"


async def test_a_request_is_answered_by_a_function(shared_pool: ChildPool) -> None:
    assert await shared_pool.start(b"ask hello", on_message=bytes.upper).result() == b"HELLO"


async def test_a_request_is_answered_by_a_coroutine(shared_pool: ChildPool) -> None:
    async def answer(message: bytes) -> bytes:
        await asyncio.sleep(0)
        return message.upper()

    assert await shared_pool.start(b"ask hello", on_message=answer).result() == b"HELLO"


async def test_requests_of_several_threads_get_their_own_answers(shared_pool: ChildPool) -> None:
    async def answer(message: bytes) -> bytes:
        await asyncio.sleep(0.001 * (7 - int(message)))  # the last one asked is answered first
        return message * 2

    assert await shared_pool.start(b"ask_from_threads 7", on_message=answer).result() == b"00 11 22 33 44 55 66"


async def test_a_request_that_cannot_be_answered_is_rejected(
    shared_pool: ChildPool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: bytes) -> bytes:
        raise LookupError("nothing here")

    async def fail_later(message: bytes) -> bytes:
        raise LookupError("nothing here")

    for callback in (fail, fail_later):
        run = shared_pool.start(b"ask hello", on_message=callback)
        assert await run.result() == b"refused: LookupError: nothing here"
    assert len(caplog.records) == 2


async def test_a_callback_that_fails_does_not_harm_the_job(
    shared_pool: ChildPool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: bytes) -> None:
        raise LookupError

    assert await shared_pool.start(b"flood 3", on_message=fail).result() == b"done"
    assert len(caplog.records) == 3


async def test_notes_reach_a_running_job_in_order(shared_pool: ChildPool) -> None:
    run, _ = await start_and_hear(shared_pool, b"wait_for_note last")
    for note in (b"first", b"second", b"last"):
        run.notify(note)
    assert await run.result() == b"first,second,last"


async def test_a_note_for_a_job_that_has_ended_does_not_reach_the_next(shared_pool: ChildPool) -> None:
    run = shared_pool.start(b"echo x")
    await run.result()
    run.notify(b"stale")
    run, _ = await start_and_hear(shared_pool, b"wait_for_note go")
    run.notify(b"go")
    assert await run.result() == b"go"


async def test_a_leftover_thread_cannot_send_messages_of_the_next_job(shared_pool: ChildPool) -> None:
    await do(shared_pool, b"talk_after_the_end")
    heard: list[bytes] = []
    run = shared_pool.start(b"what_was_left", on_message=heard.append)
    assert await run.result() == b"ChannelClosed ChannelClosed"
    assert heard == []


# ---------------------------------------------------------------- jobs that end oddly


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (b"fail ValueError", "ValueError: no such thing"),
        (b"fail SystemExit", "SystemExit: 3"),
        (b"fail KeyboardInterrupt", "KeyboardInterrupt"),
        (b"fail GeneratorExit", "GeneratorExit"),
        (b"fail Unprintable", "Unprintable"),
        (b"recurse", "RecursionError: maximum recursion depth exceeded"),
        (b"answer_with_text", "TypeError: the entry function must return bytes, got str"),
        (b"no_such_body", "KeyError: 'no_such_body'"),
    ],
)
async def test_any_exception_of_a_job_is_an_error_and_the_child_survives(
    shared_pool: ChildPool, job: bytes, expected: str
) -> None:
    pid = await do(shared_pool, b"pid")
    with pytest.raises(ChildError) as caught:
        await do(shared_pool, job)
    assert expected in str(caught.value)
    assert caught.value.traceback.strip().endswith(str(caught.value))
    assert await do(shared_pool, b"pid") == pid


@pytest.mark.parametrize("job", [b"exit_in_thread", b"close_standard_streams", b"signal_self SIGINT"])
async def test_a_job_may_change_its_process(own_pool: ChildPool, job: bytes) -> None:
    assert await do(own_pool, job) == b"lives"
    assert await do(own_pool, b"echo next") == b"next"


async def test_a_fork_that_returns_from_the_job_does_not_answer_it(shared_pool: ChildPool) -> None:
    assert await do(shared_pool, b"fork_and_return") == b"original"
    assert await do(shared_pool, b"echo next") == b"next"


@pytest.mark.parametrize(
    ("job", "exit_code", "signal_name"),
    [
        (b"exit_at_once 0", 0, None),
        (b"exit_at_once 7", 7, None),
        (b"signal_self SIGKILL", None, "SIGKILL"),
        (b"signal_self SIGTERM", None, "SIGTERM"),
        (b"segfault", None, "SIGSEGV"),
        (b"close_everything", None, "SIGKILL"),
        (b"write_everywhere", None, "SIGKILL"),
    ],
)
async def test_the_death_of_a_child_is_reported_with_its_cause(
    shared_pool: ChildPool, job: bytes, exit_code: int | None, signal_name: str | None
) -> None:
    pid = int(await do(shared_pool, b"pid"))
    with pytest.raises(ChildDied) as caught:
        await do(shared_pool, job)
    assert (caught.value.pid, caught.value.exit_code, caught.value.signal_name) == (pid, exit_code, signal_name)
    assert (signal_name or f"code {exit_code}") in str(caught.value)
    assert not psutil.pid_exists(pid)
    assert await do(shared_pool, b"echo next") == b"next"


async def test_frames_before_invalid_bytes_are_handled() -> None:
    # Or else a job could be taken for one that was never accepted, and run again.
    frames = FrameReader().feed(Frame(Kind.ACCEPTED).encode() + b"\xff" * 100)
    assert next(frames) == Frame(Kind.ACCEPTED)
    with pytest.raises(BadFrame):
        next(frames)


async def test_a_child_interrupted_while_sending_exits(shared_pool: ChildPool) -> None:
    run, pid = await start_and_hear(shared_pool, b"raise_in_the_middle_of_a_message")
    assert has_ended_soon(int(pid))  # the event loop is blocked meanwhile, so the message cannot get through
    with pytest.raises(ChildDied, match="SIGKILL"):
        await run.result()


async def test_frames_of_a_dead_child_are_handled_before_its_end(shared_pool: ChildPool) -> None:
    pid = int(await do(shared_pool, b"pid"))
    run = shared_pool.start(b"exit_at_once 3")
    while psutil.pid_exists(pid):
        time.sleep(0.001)  # noqa: ASYNC251  the event loop shall be blocked, and find both news at once
    time.sleep(0.01)  # noqa: ASYNC251
    with pytest.raises(ChildDied) as caught:
        await run.result()
    assert caught.value.pid == pid  # and not another one, on which the job ran again


async def test_processes_started_by_a_child_die_with_it(shared_pool: ChildPool) -> None:
    run, helper = await start_and_hear(shared_pool, b"die_with_helper")
    with pytest.raises(ChildDied, match="exited with code 3"):
        await run.result()
    assert has_ended_soon(int(helper))


# ---------------------------------------------------------------- killing


@pytest.mark.parametrize("job", [b"spin", b"hold_the_interpreter"])
async def test_a_job_that_never_ends_is_killed_at_its_deadline(shared_pool: ChildPool, job: bytes) -> None:
    run, pid = await start_and_hear(shared_pool, job)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.result(), 0.02)
    run.kill()
    with pytest.raises(ChildKilled):
        await run.result()
    assert not psutil.pid_exists(int(pid))


async def test_a_kill_includes_processes_started_by_the_job(shared_pool: ChildPool) -> None:
    run, pids = await start_and_hear(shared_pool, b"wait_with_helper")
    run.kill()
    with pytest.raises(ChildKilled):
        await run.result()
    assert all(has_ended_soon(int(pid)) for pid in pids.split())


async def test_a_job_can_be_killed_before_its_process_has_started(own_pool: ChildPool) -> None:
    run = own_pool.start(b"echo x")
    run.kill()
    with pytest.raises(ChildKilled):
        await run.result()
    assert await do(own_pool, b"echo next") == b"next"


async def test_a_kill_after_the_end_changes_nothing(shared_pool: ChildPool) -> None:
    run = shared_pool.start(b"pid")
    pid = await run.result()
    run.kill()
    assert await run.result() == pid
    assert await do(shared_pool, b"pid") == pid


async def test_kill_all_works_while_the_event_loop_is_blocked(own_pool: ChildPool) -> None:
    await do(own_pool, b"echo idle")
    spinning = [await start_and_hear(own_pool, b"spin") for _ in range(2)]
    starting = own_pool.start(b"spin", fresh=True)
    alive_after: list[bool] = []

    def lose_the_lease() -> None:
        assert own_pool.kill_all()
        alive_after.extend(psutil.pid_exists(int(pid)) for _, pid in spinning)

    thread = threading.Thread(target=lose_the_lease)
    thread.start()
    thread.join()  # blocks the event loop
    assert alive_after == [False, False]
    for run in (starting, *[run for run, _ in spinning]):
        with pytest.raises(ChildKilled):
            await run.result()
    assert await do(own_pool, b"echo next") == b"next"


async def test_kill_all_includes_a_job_that_is_being_reassigned(own_pool: ChildPool) -> None:
    os.kill(int(await do(own_pool, b"pid")), signal.SIGKILL)
    run = own_pool.start(b"spin")  # goes to the dead child, to be moved to a new one
    thread = threading.Thread(target=own_pool.kill_all)
    thread.start()
    thread.join()
    with pytest.raises(ChildKilled):
        await run.result()


# ---------------------------------------------------------------- children that are replaced


async def test_a_job_sent_to_a_dead_child_runs_in_a_new_one(shared_pool: ChildPool) -> None:
    pid = await do(shared_pool, b"pid")
    os.kill(int(pid), signal.SIGKILL)
    assert await do(shared_pool, b"pid") != pid


async def test_a_job_and_its_notes_move_when_the_child_dies_before_it_accepts(shared_pool: ChildPool) -> None:
    pid = int(await do(shared_pool, b"pid"))
    os.kill(pid, signal.SIGSTOP)
    run = shared_pool.start(b"wait_for_note go")
    run.notify(b"go")
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await run.result() == b"go"


async def test_a_child_that_dies_while_idle_is_removed(own_pool: ChildPool) -> None:
    pid = int(await do(own_pool, b"leave_an_alarm"))  # it goes off when the job has ended
    assert has_ended_soon(pid)
    await asyncio.wait_for(none_idle(own_pool), PATIENCE_SECONDS)
    assert await do(own_pool, b"echo next") == b"next"


async def none_idle(pool: ChildPool) -> None:
    while pool.idle:  # noqa: ASYNC110  the pool has no reason to tell
        await asyncio.sleep(0.001)


async def test_a_child_is_replaced_after_recycle_after_jobs(new_pool: Callable[..., ChildPool]) -> None:
    pool = new_pool(recycle_after=2)
    pids = [await do(pool, b"pid") for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert has_ended_soon(int(pids[0]))


async def test_a_child_over_the_memory_limit_is_replaced(new_pool: Callable[..., ChildPool]) -> None:
    pool = new_pool(memory_limit_bytes=100_000_000)
    small = await do(pool, b"keep_memory 1000")
    assert await do(pool, b"keep_memory 120000000") == small
    assert await do(pool, b"pid") != small


async def test_a_fresh_job_runs_alone_in_a_new_process(shared_pool: ChildPool) -> None:
    usual = await do(shared_pool, b"pid")
    fresh = await shared_pool.start(b"pid", fresh=True).result()
    assert fresh != usual
    assert await do(shared_pool, b"pid") == usual
    assert has_ended_soon(int(fresh))


async def test_a_child_that_does_not_exit_is_killed(own_pool: ChildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "EXIT_SECONDS", 0.05)
    pid = int(await do(own_pool, b"leave_a_thread"))
    await own_pool.close()
    assert not psutil.pid_exists(pid)


# ---------------------------------------------------------------- children that cannot start


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"entry": "no_such_module:run"}, "ModuleNotFoundError: No module named 'no_such_module'"),
        ({"entry": "tests.node.children_support:absent"}, "AttributeError: .* has no attribute 'absent'"),
        ({"preload": ("no_such_module",)}, "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
async def test_a_failed_import_is_an_error_of_the_job(
    new_pool: Callable[..., ChildPool], options: dict[str, object], expected: str
) -> None:
    pool = new_pool(**options)
    with pytest.raises(ChildError, match=expected):
        await do(pool, b"echo x")
    assert pool.idle == 0  # the next one may have more luck


async def test_a_child_that_dies_on_import_does_not_count_against_the_job(
    new_pool: Callable[..., ChildPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os; os._exit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    pool = new_pool(preload=("deadly",))
    with pytest.raises(ChildNotStarted, match="exited with code 7"):
        await do(pool, b"echo x")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [("executable", "/no/such/python", "No such file"), ("path", [*sys.path, None], "NoneType")],
)
async def test_a_process_that_cannot_start_does_not_count_against_the_job(
    own_pool: ChildPool, monkeypatch: pytest.MonkeyPatch, name: str, value: object, why: str
) -> None:
    monkeypatch.setattr(sys, name, value)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(ChildNotStarted, match=why):
            await do(own_pool, b"echo x")


async def test_modules_can_be_preloaded(new_pool: Callable[..., ChildPool]) -> None:
    assert await do(new_pool(), b"is_imported wave") == b"False"
    assert await do(new_pool(preload=("wave",)), b"is_imported wave") == b"True"


@pytest.mark.parametrize(
    "options",
    [{"entry": "module"}, {"entry": "module:"}, {"entry": ":f"}, {"recycle_after": 0}, {"memory_limit_bytes": 0}],
)
async def test_invalid_options_of_the_pool_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        ChildPool(**{"entry": ENTRY, **options})  # type: ignore[arg-type]  # wrong on purpose


# ---------------------------------------------------------------- closing


async def test_close_kills_running_children_and_ends_idle_ones(own_pool: ChildPool) -> None:
    idle = int(await do(own_pool, b"pid"))
    spinning, pid = await start_and_hear(own_pool, b"spin")
    starting = own_pool.start(b"spin")
    await asyncio.gather(own_pool.close(), own_pool.close())
    await own_pool.close()
    for run in (spinning, starting):
        with pytest.raises(ChildKilled):
            await run.result()
    assert not psutil.pid_exists(idle)
    assert not psutil.pid_exists(int(pid))
    assert (own_pool.idle, own_pool.busy) == (0, 0)


async def test_a_closed_pool_accepts_no_jobs(own_pool: ChildPool) -> None:
    await own_pool.close()
    with pytest.raises(NotConnected):
        own_pool.start(b"echo x")
