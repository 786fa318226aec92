"""Identifies processes, and checks whether another process on this host is alive.

A pid alone does not identify a process: it is valid only within one pid namespace of one boot, and it is reused. So an
identity contains all of these, and the start time.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from synergon.model.nodes import ProcessIdentity

_LINUX_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LINUX_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")


def _boot_id() -> str:
    try:
        return _LINUX_BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


def _pid_namespace() -> str:
    try:
        return str(_LINUX_PID_NAMESPACE.readlink())
    except OSError:
        return "host"


BOOT_ID: Final = _boot_id()
PID_NAMESPACE: Final = _pid_namespace()


def this_process() -> ProcessIdentity:
    """The identity of the current process."""
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=BOOT_ID,
        pid_namespace=PID_NAMESPACE,
        pid=os.getpid(),
        started=_start_of(os.getpid()) or 0.0,
    )


def is_gone(process: ProcessIdentity) -> bool:
    """Whether the process is certainly dead. False if this process cannot find out."""
    if process.boot_id != BOOT_ID or process.pid_namespace != PID_NAMESPACE:
        return False
    try:
        return _start_of(process.pid) != process.started
    except OSError:
        return False


def _start_of(pid: int) -> float | None:
    """When the process started, by a clock that does not step. None if the process does not exist or is a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    if _LINUX_BOOT_ID.exists():
        try:
            # After the name, which may hold anything but ends at the last parenthesis: state, ..., start in ticks.
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else float(fields[19])
    import psutil  # not needed on Linux, and slow to import

    try:
        found = psutil.Process(pid)
        return None if found.status() == psutil.STATUS_ZOMBIE else float(found.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.Error as error:
        raise OSError(f"process {pid} cannot be looked at: {error}") from error
