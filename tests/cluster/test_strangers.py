"""A worker whose port strangers attack: it runs its tasks, its memory stays, peers get through, the log stays short."""

from __future__ import annotations

import re
import statistics
import time
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.apps.stranger import ATTACKS
from tests.cluster.peers_support import RARELY, joined, node
from tests.cluster.strangers_support import stranger
from tests.support import PATIENCE_SECONDS

from synergon import Engine

TASKS: Final = 60
MAX_GROWTH: Final = 30 * 1_000_000
MAX_FACTOR: Final = 20
"""How much longer a task may take under attack: attacker, worker and test share two processors and more."""


def most_memory(pid: int) -> int:
    """The most bytes that the process has had in memory."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) * 1024


class Counted:
    """Runs tasks one after the other; each returns how many have run, so none is lost, repeated or out of order."""

    def __init__(self, producer: Engine) -> None:
        self._producer = producer
        self._number = 0

    async def run(self, producer: Engine | None = None) -> float:
        """Enqueue a task, wait for it, and return the seconds that this took."""
        producer = producer or self._producer
        began = time.monotonic()
        (handle,) = await producer.enqueue([producer.call("count")])
        self._number += 1
        assert await handle.result(timeout=PATIENCE_SECONDS) == self._number
        return time.monotonic() - began


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("name", ATTACKS)
async def test_a_worker_under_attack_runs_its_tasks(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    async with Engine(url, sweep=RARELY) as producer:
        with node(url, "count") as process:
            await joined(producer, 1)
            address = (await producer.nodes())[0].address
            assert address is not None
            tasks = Counted(producer)
            for _ in range(TASKS):
                await tasks.run()  # in the first ones everything is loaded
            usual = statistics.median([await tasks.run() for _ in range(TASKS)])
            memory = most_memory(process.pid)
            with stranger(name, address) as attacker:
                under_attack: list[float] = []
                while len(under_attack) < TASKS or attacker.rounds < 1:
                    under_attack.append(await tasks.run())
                async with Engine(url, sweep=RARELY) as newcomer:
                    await tasks.run(newcomer)
            growth = most_memory(process.pid) - memory
    median = statistics.median(under_attack)
    print(
        f"\n{name}: {attacker.rounds} rounds, {len(under_attack)} tasks, {usual * 1000:.1f} ms before, "
        f"{median * 1000:.1f} ms (longest {max(under_attack) * 1000:.0f}) under attack, {growth / 1e6:.1f} MB more"
    )
    assert growth < MAX_GROWTH
    assert median < MAX_FACTOR * usual
