"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil


def facts(folder: Path) -> dict[str, str]:
    """Facts that a reader needs to make something of the figures."""
    return {
        "taken at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "synergon": version("synergon"),
        "huey": version("huey"),
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "file system": _file_system(folder),
        "load before": load(),
    }


def load() -> str:
    """How busy the machine is: processes that want a core, over the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def _file_system(folder: Path) -> str:
    """The type of the file system that holds the folder; a sync costs nothing on `tmpfs`."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[parent] for parent in [folder, *folder.parents] if parent in mounts), "unknown")
