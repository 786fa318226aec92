"""What the tests of child processes share: the bodies of jobs, and a look at processes from outside.

A job is the name of a body and its argument: `b"echo hello"`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from synergon.node.processes.child_main import ChannelClosed, ChildChannel, RequestRejected

ENTRY = "tests.node.children_support:run"

kept: list[object] = []
"""What jobs leave behind in their process."""


def run(job: bytes, channel: ChildChannel) -> bytes:
    name, _, argument = job.partition(b" ")
    answer: bytes = globals()[name.decode()](argument, channel)
    return answer


def echo(argument: bytes, channel: ChildChannel) -> bytes:
    return argument


def pid(argument: bytes, channel: ChildChannel) -> bytes:
    return str(os.getpid()).encode()


def speak(argument: bytes, channel: ChildChannel) -> bytes:
    print(argument.decode())
    return b""


def large(argument: bytes, channel: ChildChannel) -> bytes:
    return b"x" * int(argument)


def keep_memory(argument: bytes, channel: ChildChannel) -> bytes:
    kept.append(b"x" * int(argument))
    return pid(argument, channel)


# ---------------------------------------------------------------- talk


def flood(argument: bytes, channel: ChildChannel) -> bytes:
    for number in range(int(argument)):
        channel.send(str(number).encode())
    return b"done"


def flood_from_threads(argument: bytes, channel: ChildChannel) -> bytes:
    threads = [threading.Thread(target=flood, args=(argument, channel)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return b"done"


def ask(argument: bytes, channel: ChildChannel) -> bytes:
    try:
        return channel.request(argument)
    except RequestRejected as rejection:
        return f"refused: {rejection}".encode()


def ask_from_threads(argument: bytes, channel: ChildChannel) -> bytes:
    answers: dict[int, bytes] = {}

    def ask_one(number: int) -> None:
        answers[number] = channel.request(str(number).encode())

    threads = [threading.Thread(target=ask_one, args=(number,)) for number in range(int(argument))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return b" ".join(answers[number] for number in sorted(answers))


def wait_for_note(argument: bytes, channel: ChildChannel) -> bytes:
    channel.send(b"started")
    while argument not in channel.notes:
        channel.noted.wait(1)
    return b",".join(channel.notes)


def talk_after_the_end(argument: bytes, channel: ChildChannel) -> bytes:
    def linger() -> None:
        release.wait()
        for talk in (channel.send, channel.request):
            try:
                talk(b"too late")
            except ChannelClosed as error:
                kept.append(type(error).__name__)
        left.set()

    release, left = threading.Event(), threading.Event()
    threading.Thread(target=linger).start()
    kept[:] = [release, left]
    return b"done"


def what_was_left(argument: bytes, channel: ChildChannel) -> bytes:
    release, left = kept[:2]
    assert isinstance(release, threading.Event)
    assert isinstance(left, threading.Event)
    release.set()
    left.wait()
    return " ".join(str(thing) for thing in kept[2:]).encode()


# ---------------------------------------------------------------- bodies that do not end


def spin(argument: bytes, channel: ChildChannel) -> bytes:
    channel.send(str(os.getpid()).encode())
    while True:
        pass


def hold_the_interpreter(argument: bytes, channel: ChildChannel) -> bytes:
    channel.send(str(os.getpid()).encode())
    return str(sum(range(10**15))).encode()  # one call into C that lets no other thread run


def wait_with_helper(argument: bytes, channel: ChildChannel) -> bytes:
    helper = subprocess.Popen(["sleep", "1000"])
    channel.send(f"{os.getpid()} {helper.pid}".encode())
    helper.wait()
    return b"never"


def die_with_helper(argument: bytes, channel: ChildChannel) -> bytes:
    helper = os.fork()
    if not helper:
        time.sleep(1000)
    channel.send(str(helper).encode())
    os._exit(3)


def leave_a_thread(argument: bytes, channel: ChildChannel) -> bytes:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return pid(argument, channel)


# ---------------------------------------------------------------- bodies that end oddly


class Unprintable(BaseException):
    """An exception that breaks whoever looks at it, and cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise KeyboardInterrupt


def fail(argument: bytes, channel: ChildChannel) -> bytes:
    raise {
        b"ValueError": ValueError("no such thing"),
        b"SystemExit": SystemExit(3),
        b"KeyboardInterrupt": KeyboardInterrupt(),
        b"GeneratorExit": GeneratorExit(),
        b"Unprintable": Unprintable(),
        b"RecursionError": RecursionError("too deep"),
    }[argument]


def recurse(argument: bytes, channel: ChildChannel) -> bytes:
    return recurse(argument, channel)


def answer_with_text(argument: bytes, channel: ChildChannel) -> object:
    return "text"


def exit_at_once(argument: bytes, channel: ChildChannel) -> bytes:
    os._exit(int(argument))


def exit_in_thread(argument: bytes, channel: ChildChannel) -> bytes:
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
    return b"lives"


def signal_self(argument: bytes, channel: ChildChannel) -> bytes:
    os.kill(os.getpid(), getattr(signal, argument.decode()))
    time.sleep(0.01)
    return b"lives"


def segfault(argument: bytes, channel: ChildChannel) -> bytes:
    ctypes.string_at(0)
    return b"lives"


def close_standard_streams(argument: bytes, channel: ChildChannel) -> bytes:
    sys.stdin.close()
    sys.stdout.close()
    for fd in (0, 1, 2):
        os.closerange(fd, fd + 1)
    return b"lives"


def close_everything(argument: bytes, channel: ChildChannel) -> bytes:
    os.closerange(0, 1000)
    return b"unheard"


def write_everywhere(argument: bytes, channel: ChildChannel) -> bytes:
    for fd in range(3, 1000):  # its own have the numbers that they have in the parent
        try:
            os.write(fd, b"\xff" * 100)
        except OSError:
            continue
    time.sleep(1000)
    return b"never"


def fork_and_return(argument: bytes, channel: ChildChannel) -> bytes:
    helper = os.fork()
    if helper:
        os.waitpid(helper, 0)
    return b"original" if helper else b"copy"


def raise_in_the_middle_of_a_message(argument: bytes, channel: ChildChannel) -> bytes:
    message = b"x" * 5_000_000
    set_alarm(0.05)
    channel.send(str(os.getpid()).encode())
    channel.send(message)
    return b"never"


def leave_an_alarm(argument: bytes, channel: ChildChannel) -> bytes:
    set_alarm(0.02)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return pid(argument, channel)


def set_alarm(seconds: float) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)


# ---------------------------------------------------------------- what a child is like


def surroundings(argument: bytes, channel: ChildChannel) -> bytes:
    main = sys.modules["__main__"]
    return "\n".join([str(Path.cwd()), str(hasattr(main, "__file__")), str(sys.flags.optimize), *sys.path]).encode()


def is_imported(argument: bytes, channel: ChildChannel) -> bytes:
    return str(argument.decode() in sys.modules).encode()


# ---------------------------------------------------------------- processes, from outside


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def has_ended_soon(pid: int) -> bool:
    """For processes that are not ours, so that they can only be looked at."""
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    return not is_running(pid)
