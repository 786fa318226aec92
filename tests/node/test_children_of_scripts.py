"""Scripts that use a pool of child processes, and how they and their children end. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.node.children_support import ENTRY, has_ended_soon, is_running
from tests.support import PATIENCE_SECONDS

REPOSITORY = Path(__file__).parents[2]

SCRIPT = """
import asyncio, os, signal, sys, time
print("script", flush=True)
from synergon.node.processes.child_pool import ChildPool

pool = ChildPool(entry="{entry}")

async def main():
    asyncio.get_running_loop().slow_callback_duration = 3600  # how busy the machine is says nothing about the pool
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
    import_paths = [str(REPOSITORY), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]

    def run(body: str, *, entry: str = ENTRY, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(entry=entry, body=body.replace("\n", "\n    ")))
        scripts.append(
            subprocess.Popen(
                [sys.executable, "-X", "dev", "-W", "error", *flags, path],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(import_paths)},
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
    output, errors = script.communicate(timeout=PATIENCE_SECONDS)
    assert output.split() == ["script", "answer", "end"]
    assert errors == ""


def test_a_child_imports_what_its_parent_can_import(run_script: Script, tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("def run(job, channel): return job.upper()")
    script = run_script('print(await pool.start(b"x").result())', entry="beside_the_script:run")
    output, errors = script.communicate(timeout=PATIENCE_SECONDS)
    assert "b'X'" in output
    assert errors == ""


def test_a_child_has_the_interpreter_flags_of_its_parent(run_script: Script) -> None:
    script = run_script(
        'lines = (await pool.start(b"surroundings").result()).decode().split("\\n")\n'
        'assert lines == [os.getcwd(), "False", "1", *sys.path], lines',
        flags=("-O",),
    )
    _, errors = script.communicate(timeout=PATIENCE_SECONDS)
    assert errors == ""


def test_nothing_is_left_behind_after_many_jobs(run_script: Script) -> None:
    script = run_script(
        "import threading\n"
        "def left(): return [*os.listdir('/proc/self/fd'), *os.listdir('/proc/self/task'), *threading.enumerate()]\n"
        "before = left()\n"
        "for number in range(50):\n"
        "    run = pool.start(b'exit_at_once 1' if number == 20 else b'echo x', fresh=number == 30)\n"
        "    if number == 40: run.kill()\n"
        "    await asyncio.gather(run.result(), return_exceptions=True)\n"
        "await pool.close()\n"
        "for _ in range(500):  # a thread that has returned is gone a moment later\n"
        "    if left() == before: break\n"
        "    await asyncio.sleep(0.01)\n"
        "assert left() == before, (before, left())\n"
        "try: os.waitpid(-1, 0)\n"
        "except ChildProcessError: print('nothing')"
    )
    output, errors = script.communicate(timeout=PATIENCE_SECONDS)
    assert output.split() == ["script", "nothing", "end"]
    assert errors == ""


def test_the_output_of_a_job_is_flushed_at_its_end(run_script: Script) -> None:
    script = run_script('await pool.start(b"speak hello").result()\nos._exit(0)')
    output, _ = script.communicate(timeout=PATIENCE_SECONDS)
    assert output.split() == ["script", "hello"]


def test_children_end_when_the_parent_exits_without_close(run_script: Script) -> None:
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
    assert pids
    assert all(is_running(pid) for pid in pids)
    script.kill()
    try:
        assert all(has_ended_soon(pid) for pid in pids)
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_fork_of_the_parent_does_not_keep_its_children_alive(run_script: Script) -> None:
    script = run_script(
        "import warnings; warnings.simplefilter('ignore')  # forks are frowned upon, and happen\n"
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
def test_a_signal_to_the_foreground_group_reaches_the_parent_only(
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
    output, errors = script.communicate(timeout=PATIENCE_SECONDS)
    assert output.split() == ["go", "end"]
    assert errors == ""
