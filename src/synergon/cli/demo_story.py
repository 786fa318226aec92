"""The demo's story: what happens, in order, and what is said about it."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, Final

from synergon.cli import demo_app as app
from synergon.cli.demo_log import Run
from synergon.cli.demo_stage import Stage
from synergon.cli.demo_workers import WorkerProcess
from synergon.model.lifecycle import FINAL, State
from synergon.task import Call

REMINDERS: Final = 60


class Story:
    """What happens, in order."""

    def __init__(self, stage: Stage, tasks: int) -> None:
        self._stage = stage
        self._say = stage.view.say
        self._tasks = tasks
        self._is_calm = False
        self._is_enough = False

    async def tell(self) -> None:
        """From the first worker to the end of the last task."""
        await self._open()
        await self._fill()
        trickle = asyncio.ensure_future(self._trickle())
        await self._overtake()
        await self._stage.pause(2)
        await self._cancel()
        await self._stage.pause(1.5)
        await self._look_back()
        await self._kill()
        await self._stage.pause(3)
        # Told to end rather than cancelled: an enqueue that is cut off may be accepted all the same.
        self._is_enough = True
        await trickle
        waited = await self._stage.until(self._stage.is_all_ended)
        self._say(f"nothing new comes, and {waited:.1f} s later nothing is left to do")

    async def _open(self) -> None:
        names = {self._stage.start_worker(name).name for name in ("north", "south")}

        async def have_joined() -> bool:
            return {node.name for node in await app.engine.nodes()} >= names

        seconds = await self._stage.until(have_joined)
        self._say(f"workers north and south are there, after {seconds:.1f} s")

    async def _fill(self) -> None:
        plenty = self._tasks // 20
        calls: list[Call[Any]] = [
            *(app.mail.call(number) for number in range(14 * plenty)),
            *(app.thumbnail.call(number) for number in range(2 * plenty)),
            *(app.charge.call(number) for number in range(4 * plenty)),
            *(app.archive.call(number) for number in range(12)),
        ]
        began = time.monotonic()
        await self._stage.enqueue(calls)
        self._say(f"{len(calls):,} tasks accepted in {time.monotonic() - began:.2f} s, all of them safe on disk")
        span = 5 / self._stage.pace
        later = app.remind.with_options
        await self._stage.enqueue(later(delay=span * n / REMINDERS).call(n) for n in range(1, REMINDERS + 1))
        self._say(f"{REMINDERS} more are to start at given moments in the next {span:g} s")

    async def _trickle(self) -> None:
        """New work all the time, so that there is something to be late for."""
        number = 0
        while not self._is_enough:
            number += 1
            wave: list[Call[Any]] = [app.alert.call(number), app.charge.call(number)]
            wave += [app.mail.call(number) for _ in range(0 if self._is_calm else self._tasks // 60)]
            await self._stage.enqueue(wave)
            await self._stage.pause(0.1)

    async def _overtake(self) -> None:
        stage = self._stage
        asked_at = time.time()
        (handle,) = await stage.enqueue([app.alert.call(0)])
        await stage.until(lambda: handle.id in stage.log.by_task)
        seconds = stage.log.by_task[handle.id][0].started_at - asked_at
        waiting = (await app.engine.counts(kind="mail"))[State.READY]
        self._say(f"an alert starts after {_ms(seconds)}, ahead of {waiting:,} mails that wait")

    async def _cancel(self) -> None:
        stage = self._stage
        (handle,) = await stage.enqueue([app.export.call()])
        await stage.until(lambda: handle.id in stage.log.by_task)
        await stage.pause(1)
        stage.cancelled.append(handle.id)
        asked_at = time.time()
        await handle.cancel("nobody waits for it any more")
        (run,) = stage.log.by_task[handle.id]
        await stage.until(lambda: run.is_stopped)
        assert run.ended_at is not None
        self._say(f"a running export is cancelled, and its body ends {_ms(run.ended_at - asked_at)} later")

    async def _look_back(self) -> None:
        log = self._stage.log
        refused = sum(run.is_stopped and run.kind == "charge" for run in log.runs)
        self._say(f"{refused} charges that failed were tried again half a second later")
        await self._stage.until(lambda: len(self._reminded()) >= REMINDERS / 2)
        reminded = self._reminded()
        records = await app.engine.store.get([run.task_id for run in reminded])
        late = [
            run.started_at - record.run_at.timestamp()
            for run, record in zip(reminded, records, strict=True)
            if record is not None
        ]
        half = _ms(statistics.median(late))
        self._say(f"{len(late)} of the {REMINDERS} delayed ones have started, half of them less than {half} late")

    def _reminded(self) -> list[Run]:
        return [run for run in self._stage.log.runs if run.kind == "remind"]

    async def _kill(self) -> None:
        stage, log = self._stage, self._stage.log
        south = stage.workers[1]
        # Each body that is cut off runs again in a process of its own; with dozens of mails that would take its time.
        self._is_calm = True
        await stage.until(lambda: self._is_in_the_middle(south))
        killed_at = south.kill()
        log.read()
        cut_off = log.running_on(south.name)
        self._say(f"SIGKILL to south, with {len(cut_off)} bodies in the middle of their work", "bold red")
        await stage.until(lambda: all(log.by_task[run.task_id][-1] is not run for run in cut_off))
        self._is_calm = False
        taken = min([await self._taken_back_at(run.task_id) for run in cut_off])
        started = max(log.by_task[run.task_id][-1].started_at for run in cut_off)
        self._say(
            f"north notices it {_ms(taken - killed_at)} later, and runs all {len(cut_off)} again within "
            f"{started - killed_at:.1f} s",
            "bold green",
        )

    async def _is_in_the_middle(self, worker: WorkerProcess) -> bool:
        """Whether it is well into long bodies; gives out more of them until it is."""
        runs = [run for run in self._stage.log.running_on(worker.name) if run.kind == "encode"]
        counts = await app.engine.counts(kind="encode")
        if all(state in FINAL for state, number in counts.items() if number):
            await self._stage.enqueue([app.encode.call(number) for number in range(2 * app.ENCODERS)])
        return any(time.time() - run.started_at > app.ENCODE_SECONDS / 2 for run in runs)

    @staticmethod
    async def _taken_back_at(task_id: int) -> float:
        error = (await app.engine.get(task_id)).error
        assert error is not None
        assert error.at is not None
        return error.at.timestamp()


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
