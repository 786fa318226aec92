"""A process that has imported synergon already, and forks the processes of the Python programs that it is asked for.

To start Python and to import synergon takes longer than most programs of the tests. This process does both once. A
process that is forked is as good as one of a new interpreter, and ends like one. `tests/warm_process.py` asks.

Each request has five descriptors: a file with the request in JSON, standard input, output and error of the program, and
a pipe that gets a line with the process id, and a line with the exit code when the program has ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time

import synergon

PACKAGES = ("cli", "client", "doctor", "explain", "node", "peering", "providers", "stores", "testing")
"""What workers, producers and commands need."""


class Forked(Exception):
    """Raised in a child to leave the parent's loop."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors


def import_everything() -> None:
    """Import all modules of these packages. Those of the command line are forgotten again, and what they import stays:
    they look at the environment when they are imported, and that is the program's."""
    for name in PACKAGES:
        package = importlib.import_module(f"{synergon.__name__}.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in list(sys.modules):
        if f"{name}.".startswith(f"{synergon.__name__}.cli."):
            del sys.modules[name]
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy what it shares with this process


def serve(requests: socket.socket) -> None:
    """Fork a process for each request until no process can ask any more."""
    children: dict[int, int] = {}
    ends, end = os.pipe()
    os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(end)
    while True:
        readable, _, _ = select.select([requests.fileno(), ends], [], [])
        if ends in readable:
            os.read(ends, 1024)
            report_ends(children)
        if requests.fileno() in readable:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 5)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (requests.detach(), ends, end, *children.values()):
                    os.close(descriptor)
                raise Forked(descriptors)
            *given, children[pid] = descriptors
            for descriptor in given:
                os.close(descriptor)
            os.write(children[pid], b"%d\n" % pid)


def report_ends(children: dict[int, int]) -> None:
    """Tell the exit codes of those that have ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            descriptor = children.pop(pid)
            with os.fdopen(descriptor, "wb") as pipe:
                pipe.write(b"%d\n" % os.waitstatus_to_exitcode(status))


def become(descriptors: list[int]) -> None:
    """Be the program, from here to the end of the process."""
    asked, *streams, told = descriptors
    os.close(told)
    with os.fdopen(asked, encoding="utf-8") as file:
        request = json.load(file)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["own_group"]:
        os.setpgid(0, 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[0] = request["folder"]
    sys.argv = [request["program"], *request["arguments"]]
    match request["way"]:
        case "module":
            runpy.run_module(request["program"], run_name="__main__", alter_sys=True)
        case "script":
            runpy.run_path(request["program"], run_name="__main__")
        case _:
            importlib.import_module(request["program"])


if __name__ == "__main__":
    import_everything()
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except Forked as forked:
        inherited = forked.descriptors
    else:
        sys.exit()
    become(inherited)
