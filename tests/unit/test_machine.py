"""What a machine has: the variables, the driver and the limits of containers, as they are written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergon.model.requirements import UNIT
from synergon.node.capacity import machine


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_this_machine_has_processors_and_memory() -> None:
    found = machine.resources()
    assert found["cpu"] >= UNIT // 100
    assert found["ram"] >= 2**20
    assert found["gpu"] % UNIT == 0
    assert found["cpu"] <= machine.usable_processors() * UNIT


def test_every_control_group_above_a_process_limits_it(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pods/one\n")
    write(tmp_path, "sys/fs/cgroup/pods/one/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/pods/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/pods/one/memory.max", "1073741824\n")
    write(tmp_path, "sys/fs/cgroup/pods/memory.max", "max\n")
    groups = list(machine.control_groups(tmp_path))
    assert list(machine.processor_limits(groups)) == [1.5]
    assert list(machine.memory_limits(groups)) == [2**30]


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n")
    write(tmp_path, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "536870912\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    groups = list(machine.control_groups(tmp_path))
    assert list(machine.processor_limits(groups)) == [0.5]
    assert list(machine.memory_limits(groups)) == [2**29]


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert list(machine.control_groups(tmp_path)) == []


@pytest.mark.parametrize(
    ("visible", "number"),
    [("", 0), ("-1", 0), ("0", 1), ("0,1,3", 3), ("0,-1,2", 1), ("GPU-a, GPU-b", 2), ("NoDevFiles", 0), ("1,1", 1)],
)
def test_the_visible_devices_are_counted(tmp_path: Path, visible: str, number: int) -> None:
    write(tmp_path, "dev/nvidia0", "")
    environment = {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": "all"}
    assert machine.gpus(environment, tmp_path) == number


@pytest.mark.parametrize(("granted", "number"), [("void", 0), ("none", 0), ("0,1", 2), ("all", 3)])
def test_gpus_granted_to_a_container_are_counted(tmp_path: Path, granted: str, number: int) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        write(tmp_path, f"dev/{name}", "")
    assert machine.gpus({"NVIDIA_VISIBLE_DEVICES": granted}, tmp_path) == number


def test_the_driver_is_asked_if_no_variable_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin/nvidia-smi"
    write(tmp_path, "bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: one (UUID: a)'\necho 'GPU 1: two (UUID: b)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert machine.gpus({}, tmp_path) == 2
    write(tmp_path, "bin/nvidia-smi", "#!/bin/sh\necho 'no devices were found'\nexit 6\n")
    assert machine.gpus({}, tmp_path) == 0
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert machine.gpus({}, tmp_path) == 1
