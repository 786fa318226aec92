"""The demo's scenario: its steps, in order, each with a line for the viewer."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, Final

from synergon.call import Call
from synergon.demo import app
from synergon.demo.cluster import DemoCluster
from synergon.demo.task_log import Run
from synergon.demo.worker_processes import WorkerProcess
from synergon.model.lifecycle import FINAL, State

REMINDERS: Final = 60


class Scenario:
    """Runs the steps of the demo."""

    def __init__(self, cluster: DemoCluster, tasks: int) -> None:
        self._cluster = cluster
        self._print = cluster.view.print
        self._tasks = tasks
        self._sends_mail = True
        self._is_ending = False

    async def run(self) -> None:
        """Run all steps, from the first worker to the end of the last task."""
        await self._start_workers()
        await self._enqueue_tasks()
        steady_load = asyncio.ensure_future(self._produce_steadily())
        await self._show_priority()
        await self._cluster.pause(2)
        await self._show_cancel()
        await self._cluster.pause(1.5)
        await self._show_retries_and_schedule()
        await self._kill_worker()
        await self._cluster.pause(3)
        # Asked to end rather than cancelled: an enqueue that is cancelled may have been committed.
        self._is_ending = True
        await steady_load
        seconds = await self._cluster.wait_until(self._cluster.have_all_ended)
        self._print(f"no new tasks; {seconds:.1f} s later all have ended")

    async def _start_workers(self) -> None:
        names = {self._cluster.start_worker(name).name for name in ("north", "south")}

        async def have_joined() -> bool:
            return {node.name for node in await app.engine.nodes()} >= names

        seconds = await self._cluster.wait_until(have_joined)
        self._print(f"workers north and south started in {seconds:.1f} s")

    async def _enqueue_tasks(self) -> None:
        twentieth = self._tasks // 20
        calls: list[Call[Any]] = [
            *(app.mail.call(number) for number in range(14 * twentieth)),
            *(app.thumbnail.call(number) for number in range(2 * twentieth)),
            *(app.charge.call(number) for number in range(4 * twentieth)),
            *(app.archive.call(number) for number in range(12)),
        ]
        started_at = time.monotonic()
        await self._cluster.enqueue(calls)
        self._print(f"{len(calls):,} tasks enqueued in {time.monotonic() - started_at:.2f} s, all durable on disk")
        span = 5 / self._cluster.speed
        later = app.remind.with_options
        await self._cluster.enqueue(later(delay=span * n / REMINDERS).call(n) for n in range(1, REMINDERS + 1))
        self._print(f"{REMINDERS} more scheduled over the next {span:g} s")

    async def _produce_steadily(self) -> None:
        """Enqueue new tasks until the demo ends, so that priorities matter."""
        number = 0
        while not self._is_ending:
            number += 1
            calls: list[Call[Any]] = [app.alert.call(number), app.charge.call(number)]
            calls += [app.mail.call(number) for _ in range(self._tasks // 60 if self._sends_mail else 0)]
            await self._cluster.enqueue(calls)
            await self._cluster.pause(0.1)

    async def _show_priority(self) -> None:
        cluster = self._cluster
        enqueued_at = time.time()
        (handle,) = await cluster.enqueue([app.alert.call(0)])
        await cluster.wait_until(lambda: handle.id in cluster.log.by_task)
        seconds = cluster.log.by_task[handle.id][0].started_at - enqueued_at
        ready = (await app.engine.counts(kind="mail"))[State.READY]
        self._print(f"an alert started after {_ms(seconds)}, ahead of {ready:,} ready mails")

    async def _show_cancel(self) -> None:
        cluster = self._cluster
        (handle,) = await cluster.enqueue([app.export.call()])
        await cluster.wait_until(lambda: handle.id in cluster.log.by_task)
        await cluster.pause(1)
        cluster.cancelled.append(handle.id)
        cancelled_at = time.time()
        await handle.cancel("no longer needed")
        (run,) = cluster.log.by_task[handle.id]
        await cluster.wait_until(lambda: run.has_error)
        assert run.ended_at is not None
        self._print(f"a running export was cancelled and stopped {_ms(run.ended_at - cancelled_at)} later")

    async def _show_retries_and_schedule(self) -> None:
        log = self._cluster.log
        failed = sum(run.has_error and run.kind == "charge" for run in log.runs)
        self._print(f"{failed} charges failed and were retried half a second later")
        await self._cluster.wait_until(lambda: len(self._reminders()) >= REMINDERS / 2)
        reminders = self._reminders()
        records = await app.engine._store.get([run.task_id for run in reminders])
        delays = [
            run.started_at - record.run_at.timestamp()
            for run, record in zip(reminders, records, strict=True)
            if record is not None
        ]
        median = _ms(statistics.median(delays))
        self._print(f"{len(delays)} of {REMINDERS} scheduled tasks have started; median delay {median}")

    def _reminders(self) -> list[Run]:
        return [run for run in self._cluster.log.runs if run.kind == "remind"]

    async def _kill_worker(self) -> None:
        cluster, log = self._cluster, self._cluster.log
        south = cluster.workers[1]
        # Each interrupted task runs again alone in a child process; dozens of mails would take long.
        self._sends_mail = False
        await cluster.wait_until(lambda: self._runs_long_tasks(south))
        killed_at = south.kill()
        log.read()
        interrupted = log.running_on(south.name)
        self._print(f"SIGKILL to south while it runs {len(interrupted)} tasks", "bold red")
        await cluster.wait_until(lambda: all(log.by_task[run.task_id][-1] is not run for run in interrupted))
        self._sends_mail = True
        reaped_at = min([await self._reaped_at(run.task_id) for run in interrupted])
        restarted_at = max(log.by_task[run.task_id][-1].started_at for run in interrupted)
        self._print(
            f"north noticed after {_ms(reaped_at - killed_at)} and re-ran all {len(interrupted)} within "
            f"{restarted_at - killed_at:.1f} s",
            "bold green",
        )

    async def _runs_long_tasks(self, worker: WorkerProcess) -> bool:
        """Whether the worker has run a long task for half of its time. Enqueues more long tasks if all have ended."""
        runs = [run for run in self._cluster.log.running_on(worker.name) if run.kind == "encode"]
        counts = await app.engine.counts(kind="encode")
        if all(state in FINAL for state, number in counts.items() if number):
            await self._cluster.enqueue([app.encode.call(number) for number in range(2 * app.ENCODERS)])
        return any(time.time() - run.started_at > app.ENCODE_SECONDS / 2 for run in runs)

    @staticmethod
    async def _reaped_at(task_id: int) -> float:
        error = (await app.engine.get(task_id)).error
        assert error is not None
        assert error.at is not None
        return error.at.timestamp()


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
