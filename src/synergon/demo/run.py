"""Runs the demo: about fifteen seconds that show what synergon does, and a summary that checks it.

The demo runs several kinds of tasks on one SQLite file in a temporary folder, on two worker processes. One of them is
killed while it runs tasks. The exit code is 1 if the summary finds a discrepancy. The demo leaves no file and no
process behind, even if it is interrupted.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from synergon.demo.cluster import DemoCluster
from synergon.demo.scenario import Scenario
from synergon.demo.summary import print_summary
from synergon.demo.view import View

TIMEOUT_SECONDS: Final = 90.0


def main(tasks: int = 3000, speed: float = 1.0) -> None:
    """Run the demo with about `tasks` tasks at the start. A `speed` of 2 halves its pauses."""
    console = Console(markup=False, highlight=False, emoji=False)
    try:
        with tempfile.TemporaryDirectory(prefix="synergon-demo-") as folder:
            is_consistent = asyncio.run(_run(Path(folder), console, tasks, speed))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; the workers are stopped and the temporary folder is removed")
        raise SystemExit(130) from None
    except TimeoutError:
        console.print(f"the demo did not finish within {TIMEOUT_SECONDS:g} s and was aborted")
        raise SystemExit(1) from None
    if not is_consistent:
        raise SystemExit(1)


async def _run(folder: Path, console: Console, tasks: int, speed: float) -> bool:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with View(console) as view:
        async with asyncio.timeout(TIMEOUT_SECONDS), DemoCluster(folder, view, speed) as cluster:
            await Scenario(cluster, tasks).run()
            summary = await cluster.stop_and_summarise()
    return print_summary(summary, console)
