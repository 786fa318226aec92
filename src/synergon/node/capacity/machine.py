"""The resources of the machine that tasks can use: processors, memory and GPUs, within the limits of the container."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from synergon.model.requirements import UNIT

ASK_SECONDS: Final = 5.0
"""The timeout of nvidia-smi in seconds."""

_NO_GPU: Final = ("", "none", "void", "nodevfiles")


@cache
def resources() -> Mapping[str, int]:
    """The amount of each resource, in the integer units of requirements. Cached: the amounts do not change while a
    process runs."""
    import psutil  # slow to import, and only nodes need it

    groups = list(control_groups(Path("/")))
    memory = min([int(psutil.virtual_memory().total), *memory_limits(groups)])
    processors = min([float(usable_processors()), *processor_limits(groups)])
    return {"cpu": int(processors * UNIT), "ram": memory, "gpu": gpus(os.environ, Path("/")) * UNIT}


def usable_processors() -> int:
    """The number of processors that this process may run on."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---------------------------------------------------------------- containers


def control_groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of all their parents. Each may set limits."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            mount = root / "sys/fs/cgroup" / names if names else root / "sys/fs/cgroup"
            group = PurePosixPath(path)
            for ancestor in (group, *group.parents):
                yield mount / ancestor.relative_to("/")


def memory_limits(groups: list[Path]) -> Iterator[int]:
    """The memory limits of these control groups, in bytes. A control group without a limit contains "max", which is
    skipped, or with cgroups v1 a number that is larger than any memory."""
    for group in groups:
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(group / name)
            if text.isdecimal():
                yield int(text)


def processor_limits(groups: list[Path]) -> Iterator[float]:
    """CPU limits as numbers of processors: quota divided by period."""
    for group in groups:
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# ---------------------------------------------------------------- GPUs


def gpus(environment: Mapping[str, str], root: Path) -> int:
    """The number of GPUs that this process may use: from the usual environment variables, otherwise from the driver."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _count_listed(visible)
    granted = environment.get("NVIDIA_VISIBLE_DEVICES")
    if granted is not None and granted.strip().lower() != "all":
        return _count_listed(granted)
    return _count_by_driver(root)


def _count_listed(text: str) -> int:
    """The number of devices in a list. The list ends at the first invalid name, as it does for the driver."""
    if text.strip().lower() in _NO_GPU:
        return 0
    names: list[str] = []
    for entry in text.split(","):
        name = entry.strip()
        if not name or name.startswith("-"):
            break
        names.append(name)
    return len(set(names))


def _count_by_driver(root: Path) -> int:
    for folder, pattern in (("proc/driver/nvidia/gpus", "*"), ("dev", "nvidia[0-9]*")):
        with suppress(OSError):
            found = len(list((root / folder).glob(pattern)))
            if found:
                return found
    return _count_by_tool()


def _count_by_tool() -> int:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
