"""The pool of child processes, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from synergon.errors import NotConnected, OptionError
from synergon.node import child_process
from synergon.node.children import ChildDied, ChildError, ChildKilled, ChildNotStarted, ChildPool, ChildRun

ENTRY = "tests.node.children_support:run"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
async def new_pool() -> AsyncIterator[Callable[..., ChildPool]]:
    pools: list[ChildPool] = []

    def make(**options: object) -> ChildPool:
        pools.append(ChildPool(**{"entry": ENTRY, **options}))  # type: ignore[arg-type]
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


@pytest.fixture
def pool(new_pool: Callable[..., ChildPool]) -> ChildPool:
    return new_pool()


async def do(pool: ChildPool, job: bytes) -> bytes:
    return await pool.start(job).result()


async def start_and_hear(pool: ChildPool, job: bytes) -> tuple[ChildRun, bytes]:
    """A running job and the first thing it says."""
    first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    run = pool.start(job, on_message=lambda message: None if first.done() else first.set_result(message))
    return run, await first


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def has_ended_soon(pid: int) -> bool:
    """For processes that are not ours, so that they can only be looked at."""
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    return not is_running(pid)


# ---------------------------------------------------------------- jobs and answers


async def test_a_job_is_answered(pool: ChildPool) -> None:
    assert await do(pool, b"echo hello") == b"hello"


async def test_an_idle_child_does_the_next_job(pool: ChildPool) -> None:
    first = await do(pool, b"pid")
    assert (pool.idle, pool.busy) == (1, 0)
    run = pool.start(b"pid")
    assert (pool.idle, pool.busy) == (0, 1)
    assert await run.result() == first


async def test_jobs_at_the_same_time_have_children_of_their_own(pool: ChildPool) -> None:
    runs = [pool.start(b"wait_for_note go") for _ in range(3)]
    for run in runs:
        run.notify(b"go")
    assert [await run.result() for run in runs] == [b"go"] * 3
    assert pool.idle == 3


async def test_a_warm_child_answers_within_a_millisecond_or_so(pool: ChildPool) -> None:
    await do(pool, b"echo warm")
    durations = []
    for _ in range(200):
        began = time.perf_counter()
        await do(pool, b"echo again")
        durations.append(time.perf_counter() - began)
    assert sorted(durations)[100] < 0.005  # a tenth of that on a quiet machine


async def test_an_answer_may_be_huge(pool: ChildPool) -> None:
    assert await do(pool, b"large 5000000") == b"x" * 5_000_000


async def test_a_job_may_be_huge(pool: ChildPool) -> None:
    assert await do(pool, b"echo " + b"x" * 5_000_000) == b"x" * 5_000_000


async def test_giving_up_the_wait_leaves_the_job_alone(pool: ChildPool) -> None:
    run, _ = await start_and_hear(pool, b"wait_for_note go")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.result(), 0.01)
    run.notify(b"go")
    assert await run.result() == b"go"
    assert await run.result() == b"go"


# ---------------------------------------------------------------- talk


async def test_messages_arrive_in_order_and_before_the_answer(pool: ChildPool) -> None:
    heard: list[bytes] = []
    assert await pool.start(b"flood 10000", on_message=heard.append).result() == b"done"
    assert heard == [str(number).encode() for number in range(10_000)]


async def test_threads_of_a_job_do_not_mix_up_their_messages(pool: ChildPool) -> None:
    heard: list[bytes] = []
    await pool.start(b"flood_from_threads 500", on_message=heard.append).result()
    assert sorted(heard, key=int) == [str(number).encode() for number in range(500) for _ in range(4)]


async def test_messages_that_nobody_wants_are_dropped(pool: ChildPool) -> None:
    assert await do(pool, b"flood 100") == b"done"


async def test_a_request_is_answered_by_a_function(pool: ChildPool) -> None:
    assert await pool.start(b"ask hello", on_message=bytes.upper).result() == b"HELLO"


async def test_a_request_is_answered_by_a_coroutine(pool: ChildPool) -> None:
    async def answer(message: bytes) -> bytes:
        await asyncio.sleep(0)
        return message.upper()

    assert await pool.start(b"ask hello", on_message=answer).result() == b"HELLO"


async def test_requests_of_several_threads_get_their_own_answers(pool: ChildPool) -> None:
    async def answer(message: bytes) -> bytes:
        await asyncio.sleep(0.001 * (7 - int(message)))  # the last one asked is answered first
        return message * 2

    assert await pool.start(b"ask_from_threads 7", on_message=answer).result() == b"00 11 22 33 44 55 66"


async def test_a_request_that_cannot_be_answered_is_refused(pool: ChildPool, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: bytes) -> bytes:
        raise LookupError("nothing here")

    async def fail_later(message: bytes) -> bytes:
        raise LookupError("nothing here")

    for callback in (fail, fail_later):
        run = pool.start(b"ask hello", on_message=callback)
        assert await run.result() == b"refused: LookupError: nothing here"
    assert len(caplog.records) == 2


async def test_a_callback_that_fails_does_not_harm_the_job(pool: ChildPool, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: bytes) -> None:
        raise LookupError

    assert await pool.start(b"flood 3", on_message=fail).result() == b"done"
    assert len(caplog.records) == 3


async def test_notes_reach_a_running_job_in_order(pool: ChildPool) -> None:
    run, _ = await start_and_hear(pool, b"wait_for_note last")
    for note in (b"first", b"second", b"last"):
        run.notify(note)
    assert await run.result() == b"first,second,last"


async def test_a_note_for_a_job_that_has_ended_does_not_reach_the_next(pool: ChildPool) -> None:
    run = pool.start(b"echo x")
    await run.result()
    run.notify(b"stale")
    run, _ = await start_and_hear(pool, b"wait_for_note go")
    run.notify(b"go")
    assert await run.result() == b"go"


async def test_a_thread_left_behind_cannot_talk_into_the_next_job(pool: ChildPool) -> None:
    await do(pool, b"talk_after_the_end")
    heard: list[bytes] = []
    run = pool.start(b"what_was_left", on_message=heard.append)
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
async def test_whatever_a_body_raises_is_an_error_and_the_child_lives_on(
    pool: ChildPool, job: bytes, expected: str
) -> None:
    pid = await do(pool, b"pid")
    with pytest.raises(ChildError) as caught:
        await do(pool, job)
    assert expected in str(caught.value)
    assert caught.value.traceback.strip().endswith(str(caught.value))
    assert await do(pool, b"pid") == pid


@pytest.mark.parametrize("job", [b"exit_in_thread", b"close_standard_streams", b"signal_self SIGINT"])
async def test_a_body_may_do_odd_things_to_its_process(pool: ChildPool, job: bytes) -> None:
    assert await do(pool, job) == b"lives"
    assert await do(pool, b"echo next") == b"next"


async def test_a_fork_that_comes_back_out_of_the_body_is_not_the_job(pool: ChildPool) -> None:
    assert await do(pool, b"fork_and_return") == b"original"
    assert await do(pool, b"echo next") == b"next"


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
async def test_a_death_under_a_job_is_told_with_its_cause(
    pool: ChildPool, job: bytes, exit_code: int | None, signal_name: str | None
) -> None:
    pid = int(await do(pool, b"pid"))
    with pytest.raises(ChildDied) as caught:
        await do(pool, job)
    assert (caught.value.pid, caught.value.exit_code, caught.value.signal_name) == (pid, exit_code, signal_name)
    assert (signal_name or f"code {exit_code}") in str(caught.value)
    assert not psutil.pid_exists(pid)
    assert await do(pool, b"echo next") == b"next"


async def test_a_child_that_was_interrupted_in_the_middle_of_a_message_ends(pool: ChildPool) -> None:
    run, pid = await start_and_hear(pool, b"raise_in_the_middle_of_a_message")
    assert has_ended_soon(int(pid))  # the event loop is blocked meanwhile, so the message cannot get through
    with pytest.raises(ChildDied, match="SIGKILL"):
        await run.result()


async def test_what_a_dead_child_has_started_dies_too(pool: ChildPool) -> None:
    run, helper = await start_and_hear(pool, b"die_with_helper")
    with pytest.raises(ChildDied, match="exited with code 3"):
        await run.result()
    assert has_ended_soon(int(helper))


# ---------------------------------------------------------------- killing


@pytest.mark.parametrize("job", [b"spin", b"hold_the_interpreter"])
async def test_a_body_that_never_ends_is_killed_at_its_deadline(pool: ChildPool, job: bytes) -> None:
    run, pid = await start_and_hear(pool, job)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.result(), 0.02)
    run.kill()
    with pytest.raises(ChildKilled):
        await run.result()
    assert not psutil.pid_exists(int(pid))


async def test_a_kill_takes_along_what_the_body_has_started(pool: ChildPool) -> None:
    run, pids = await start_and_hear(pool, b"wait_with_helper")
    run.kill()
    with pytest.raises(ChildKilled):
        await run.result()
    assert all(has_ended_soon(int(pid)) for pid in pids.split())


async def test_a_job_can_be_killed_before_its_process_has_started(pool: ChildPool) -> None:
    run = pool.start(b"echo x")
    run.kill()
    with pytest.raises(ChildKilled):
        await run.result()
    assert await do(pool, b"echo next") == b"next"


async def test_a_kill_after_the_end_changes_nothing(pool: ChildPool) -> None:
    run = pool.start(b"pid")
    pid = await run.result()
    run.kill()
    assert await run.result() == pid
    assert await do(pool, b"pid") == pid


async def test_all_are_killed_from_another_thread_while_the_event_loop_is_blocked(pool: ChildPool) -> None:
    await do(pool, b"echo idle")
    spinning = [await start_and_hear(pool, b"spin") for _ in range(2)]
    starting = pool.start(b"spin", fresh=True)
    alive_after: list[bool] = []

    def lose_the_lease() -> None:
        assert pool.kill_all()
        alive_after.extend(psutil.pid_exists(int(pid)) for _, pid in spinning)

    thread = threading.Thread(target=lose_the_lease)
    thread.start()
    thread.join()  # blocks the event loop
    assert alive_after == [False, False]
    for run in (starting, *[run for run, _ in spinning]):
        with pytest.raises(ChildKilled):
            await run.result()
    assert await do(pool, b"echo next") == b"next"


async def test_no_job_survives_that_was_being_moved_when_all_were_killed(pool: ChildPool) -> None:
    os.kill(int(await do(pool, b"pid")), signal.SIGKILL)
    run = pool.start(b"spin")  # goes to the dead child, to be moved to a new one
    thread = threading.Thread(target=pool.kill_all)
    thread.start()
    thread.join()
    with pytest.raises(ChildKilled):
        await run.result()


# ---------------------------------------------------------------- children that are replaced


async def test_a_job_sent_to_a_dead_child_runs_on_a_new_one(pool: ChildPool) -> None:
    pid = await do(pool, b"pid")
    os.kill(int(pid), signal.SIGKILL)
    assert await do(pool, b"pid") != pid


async def test_a_job_and_its_notes_move_when_the_child_dies_before_it_accepts(pool: ChildPool) -> None:
    pid = int(await do(pool, b"pid"))
    os.kill(pid, signal.SIGSTOP)
    run = pool.start(b"wait_for_note go")
    run.notify(b"go")
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await run.result() == b"go"


async def test_a_child_that_dies_while_idle_is_forgotten(pool: ChildPool) -> None:
    pid = int(await do(pool, b"leave_an_alarm"))  # it goes off when the job has ended
    assert has_ended_soon(pid)
    await asyncio.wait_for(none_idle(pool), 5)
    assert await do(pool, b"echo next") == b"next"


async def none_idle(pool: ChildPool) -> None:
    while pool.idle:  # noqa: ASYNC110  the pool has no reason to tell
        await asyncio.sleep(0.001)


async def test_a_child_is_replaced_after_so_many_jobs(new_pool: Callable[..., ChildPool]) -> None:
    pool = new_pool(recycle_after=2)
    pids = [await do(pool, b"pid") for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert has_ended_soon(int(pids[0]))


async def test_a_child_that_has_grown_too_large_is_replaced(new_pool: Callable[..., ChildPool]) -> None:
    pool = new_pool(memory_limit_bytes=100_000_000)
    small = await do(pool, b"keep_memory 1000")
    assert await do(pool, b"keep_memory 120000000") == small
    assert await do(pool, b"pid") != small


async def test_a_fresh_job_has_a_process_for_itself_alone(pool: ChildPool) -> None:
    usual = await do(pool, b"pid")
    fresh = await pool.start(b"pid", fresh=True).result()
    assert fresh != usual
    assert await do(pool, b"pid") == usual
    assert has_ended_soon(int(fresh))


async def test_a_child_that_cannot_end_is_killed(pool: ChildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "ENDING_SECONDS", 0.05)
    pid = int(await do(pool, b"leave_a_thread"))
    await pool.close()
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
async def test_what_cannot_be_imported_is_an_error_of_the_job(
    new_pool: Callable[..., ChildPool], options: dict[str, object], expected: str
) -> None:
    pool = new_pool(**options)
    with pytest.raises(ChildError, match=expected):
        await do(pool, b"echo x")
    assert pool.idle == 0  # the next one may have more luck


async def test_a_child_that_dies_while_it_imports_is_not_held_against_the_job(
    new_pool: Callable[..., ChildPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os; os._exit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    pool = new_pool(preload=("deadly",))
    with pytest.raises(ChildNotStarted, match="exited with code 7"):
        await do(pool, b"echo x")


async def test_a_process_that_cannot_be_started_is_not_held_against_the_job(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ChildNotStarted, match="No such file"):
        await do(pool, b"echo x")


@pytest.mark.parametrize(
    "options",
    [{"entry": "module"}, {"entry": "module:"}, {"entry": ":f"}, {"recycle_after": 0}, {"memory_limit_bytes": 0}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        ChildPool(**{"entry": ENTRY, **options})  # type: ignore[arg-type]


# ---------------------------------------------------------------- closing


async def test_closing_kills_what_runs_and_ends_what_is_idle(pool: ChildPool) -> None:
    idle = int(await do(pool, b"pid"))
    spinning, pid = await start_and_hear(pool, b"spin")
    starting = pool.start(b"spin")
    await asyncio.gather(pool.close(), pool.close())
    await pool.close()
    for run in (spinning, starting):
        with pytest.raises(ChildKilled):
            await run.result()
    assert not psutil.pid_exists(idle)
    assert not psutil.pid_exists(int(pid))
    assert (pool.idle, pool.busy) == (0, 0)


async def test_a_closed_pool_takes_no_jobs(pool: ChildPool) -> None:
    await pool.close()
    with pytest.raises(NotConnected):
        pool.start(b"echo x")


async def test_nothing_is_left_behind_after_many_jobs(new_pool: Callable[..., ChildPool]) -> None:
    fds, threads = count_fds(), threading.active_count()
    pool = new_pool(recycle_after=15)
    for number in range(50):
        run = pool.start(b"exit_at_once 1" if number == 20 else b"echo x", fresh=number == 30)
        if number == 40:
            run.kill()
        await failure_of(run)
    await pool.close()
    assert count_fds() == fds
    assert threading.active_count() == threads
    assert not psutil.Process().children()


def count_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def failure_of(run: ChildRun) -> Exception | None:
    try:
        await run.result()
    except (ChildDied, ChildKilled) as failure:
        return failure
    return None


# ---------------------------------------------------------------- scripts that use a pool

SCRIPT = """
import asyncio, os, signal, sys, time
print("script", flush=True)
from synergon.node.children import ChildPool

pool = ChildPool(entry="{entry}")

async def main():
    {body}
    await pool.close()

asyncio.run(main())
print("end", flush=True)
"""

Script = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[Script]:
    """Runs a script that has no `if __name__ == "__main__"`, with every warning an error."""
    scripts: list[subprocess.Popen[str]] = []

    def run(body: str, *, entry: str = ENTRY, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(entry=entry, body=body.replace("\n", "\n    ")))
        scripts.append(
            subprocess.Popen(
                [sys.executable, "-X", "dev", "-W", "error", *flags, path],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return scripts[-1]

    yield run
    for script in scripts:
        script.kill()
        script.communicate()


def next_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def test_a_script_without_a_guard_does_not_run_again_in_its_children(run_script: Script) -> None:
    script = run_script('print((await pool.start(b"echo answer").result()).decode(), flush=True)')
    output, errors = script.communicate(timeout=20)
    assert output.split() == ["script", "answer", "end"]
    assert errors == ""


def test_a_child_imports_what_its_parent_can_import(run_script: Script, tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("def run(job, channel): return job.upper()")
    script = run_script('print(await pool.start(b"x").result())', entry="beside_the_script:run")
    output, errors = script.communicate(timeout=20)
    assert "b'X'" in output
    assert errors == ""


def test_a_child_is_like_its_parent(run_script: Script) -> None:
    script = run_script(
        'lines = (await pool.start(b"surroundings").result()).decode().split("\\n")\n'
        'assert lines == [os.getcwd(), "False", "1", *sys.path], lines',
        flags=("-O",),
    )
    _, errors = script.communicate(timeout=20)
    assert errors == ""


def test_leaving_without_closing_ends_the_children(run_script: Script) -> None:
    script = run_script(
        'await pool.start(b"echo x").result()\n'
        'pool.start(b"spin", on_message=lambda pid: (print(pid.decode(), flush=True), sys.stdin.close()))\n'
        "while not sys.stdin.closed: await asyncio.sleep(0.001)\n"
        "os._exit(0)"
    )
    assert next_line(script.stdout) == "script"
    assert has_ended_soon(int(next_line(script.stdout)))


@pytest.mark.parametrize("job", ["spin", "hold_the_interpreter", "wait_with_helper"])
def test_children_end_when_their_parent_is_killed(run_script: Script, job: str) -> None:
    script = run_script(
        f'await pool.start(b"{job}", on_message=lambda pids: print(pids.decode(), flush=True)).result()',
    )
    assert next_line(script.stdout) == "script"
    pids = [int(pid) for pid in next_line(script.stdout).split()]
    assert all(is_running(pid) for pid in pids)
    script.kill()
    assert all(has_ended_soon(pid) for pid in pids)


def test_a_fork_of_the_parent_does_not_keep_its_children_alive(run_script: Script) -> None:
    script = run_script(
        "def tell(pid):\n"
        "    fork = os.fork()\n"
        "    if not fork: time.sleep(1000)\n"
        "    print(pid.decode(), fork, flush=True)\n"
        'await pool.start(b"spin", on_message=tell).result()'
    )
    assert next_line(script.stdout) == "script"
    child, fork = map(int, next_line(script.stdout).split())
    script.kill()
    try:
        assert has_ended_soon(child)
        assert is_running(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_foreground_group_is_for_the_parent_alone(
    run_script: Script, signal_number: signal.Signals
) -> None:
    script = run_script(
        "stop = asyncio.Event()\n"
        f"asyncio.get_running_loop().add_signal_handler({signal_number:d}, stop.set)\n"
        'run = pool.start(b"wait_for_note go", on_message=lambda message: print(message.decode(), flush=True))\n'
        "await stop.wait()\n"
        'run.notify(b"go")\n'
        "print((await run.result()).decode(), flush=True)"
    )
    assert next_line(script.stdout) == "script"
    assert next_line(script.stdout) == "started"
    os.killpg(script.pid, signal_number)
    output, errors = script.communicate(timeout=20)
    assert output.split() == ["go", "end"]
    assert errors == ""


async def test_modules_can_be_loaded_ahead(new_pool: Callable[..., ChildPool]) -> None:
    assert await do(new_pool(), b"is_imported wave") == b"False"
    assert await do(new_pool(preload=("wave",)), b"is_imported wave") == b"True"
