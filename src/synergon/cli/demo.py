"""`synergon demo`: fifteen seconds that show what it does, and a reckoning at the end that says whether it is true.

Several kinds of tasks, on one SQLite file in a temporary folder, on two worker processes, one of which is killed in the
middle of its work. Ends with code 1 if the reckoning does not add up. Leaves no file and no process behind, also when
it is interrupted.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from synergon.cli.demo_stage import Stage
from synergon.cli.demo_story import Story
from synergon.cli.demo_summary import show
from synergon.cli.demo_view import View

PATIENCE_SECONDS: Final = 90.0


def main(tasks: int = 3000, pace: float = 1.0) -> None:
    """Run the demo with about so many tasks at the start; a `pace` of 2 gets through the story twice as fast."""
    console = Console(markup=False, highlight=False, emoji=False)
    try:
        with tempfile.TemporaryDirectory(prefix="synergon-demo-") as folder:
            adds_up = asyncio.run(_play(Path(folder), console, tasks, pace))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; the workers are stopped and the folder is gone")
        raise SystemExit(130) from None
    except TimeoutError:
        console.print(f"this has not come to its end in {PATIENCE_SECONDS:g} s, and was given up")
        raise SystemExit(1) from None
    if not adds_up:
        raise SystemExit(1)


async def _play(folder: Path, console: Console, tasks: int, pace: float) -> bool:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with View(console) as view:
        async with asyncio.timeout(PATIENCE_SECONDS), Stage(folder, view, pace) as stage:
            await Story(stage, tasks).tell()
            reckoning = await stage.reckon()
    return show(reckoning, console)
