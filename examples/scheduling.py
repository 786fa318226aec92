"""Tasks at chosen times: each runs once, and the counters are right at every step.

    python examples/scheduling.py                       five tasks, one second apart
    python examples/scheduling.py --tasks 3 --every 0.2 --first 0.1

Everything happens in a temporary SQLite file, which is removed at the end.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from synergon import Context, Engine, Handle, State, injected

executed: Counter[int] = Counter()


async def announce(number: int, due: datetime, ctx: Context = injected) -> int:
    executed[number] += 1
    late = (datetime.now(UTC) - due).total_seconds()
    say(f"TASK #{number} EXECUTED (id {ctx.task_id}, attempt {ctx.attempt}), {late * 1000:.0f} ms after its time")
    return number


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S.%f} {text}", flush=True)


async def show_status(engine: Engine, total: int, ended: int, times: list[datetime]) -> None:
    """Print the counters, and check them against what must be true at this moment."""
    counts = await engine.counts()
    not_yet_due = sum(moment > datetime.now(UTC) for moment in times)
    say("status: " + ", ".join(f"{counts[state]} {state}" for state in State if counts[state]))
    assert sum(counts.values()) == total, "a task is in one state, and in one only"
    assert counts[State.SUCCEEDED] >= ended
    assert not_yet_due <= counts[State.SCHEDULED] <= total - ended


async def main(url: str, tasks: int, first: float, every: float) -> None:
    engine = Engine(url)
    kind = engine.task(announce)
    async with engine:
        start = datetime.now(UTC) + timedelta(seconds=first)
        times = [start + timedelta(seconds=every * index) for index in range(tasks)]
        handles: list[Handle[int]] = []
        for number, due in enumerate(times, start=1):
            handles.append(await kind.with_options(run_at=due).enqueue(number, due))
            say(f"task #{number} is scheduled for {due:%H:%M:%S.%f}")
        await show_status(engine, tasks, 0, times)

        async with engine.worker():
            for number, handle in enumerate(handles, start=1):
                assert await handle.result(timeout=first + every * tasks + 30) == number
                await show_status(engine, tasks, number, times)
            # Time enough for a task that would run a second time to do so.
            await asyncio.sleep(max(every, 0.5))

        for handle in handles:
            record = await handle.status()
            assert (record.state, record.attempts, record.claim_no) == (State.SUCCEEDED, 1, 1)
        assert executed == Counter(range(1, tasks + 1)), executed
        assert (await engine.counts())[State.SUCCEEDED] == tasks
        say(f"each of the {tasks} tasks ran once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5, help="how many")
    parser.add_argument("--first", type=float, default=1.0, help="seconds until the first one is due")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two of them")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s [%(name)s] %(message)s")
    logging.getLogger("synergon").setLevel(logging.DEBUG)  # which tells when due tasks become ready
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'scheduling.db'}"
        asyncio.run(main(url, options.tasks, options.first, options.every))
