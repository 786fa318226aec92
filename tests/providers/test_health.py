"""The health of servers, as users see it: blame, probes, events, logs, commands, and what `explain` says."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from tests.providers.crowd import Crowd
from tests.providers.task_functions import blames
from tests.support import PATIENCE_SECONDS, ended, until

from synergon import (
    AttemptOutcome,
    Context,
    Engine,
    Health,
    IllegalMove,
    OptionError,
    Retry,
    Server,
    ServerEvent,
    ServerFailed,
    State,
    Why,
    injected,
)
from synergon.policies import SERVER_FAILURE_LIMIT

NEVER_AGAIN = Health(failures=1, backoff="1h", cap="1h")


# ---------------------------------------------------------------- ServerFailed


async def test_a_task_that_blames_its_server_runs_on_another_one_and_is_not_charged(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["a", "b"], health=NEVER_AGAIN)
    events: list[str] = []
    engine.on_event(lambda event: events.append(event.name))

    @pool.task
    async def work(server: Server, ctx: Context) -> tuple[str, int]:
        if server.address == "a":
            raise ServerFailed("no answer")
        return server.address, ctx.attempt

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(4)])
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [("b", 1)] * 4
        records = [await handle.status() for handle in handles]
        weak, _ = await pool.servers()
    blamed = [record for record in records if record.server_failures]
    assert blamed
    for record in blamed:
        assert (record.attempts, record.server_failures) == (1, 1)
        assert [attempt.outcome for attempt in record.ended_attempts] == [AttemptOutcome.SERVER_FAILED]
        assert [(error.type, error.message) for error in record.errors] == [("ServerFailed", "no answer")]
    assert weak.is_out
    assert Counter(events)["server_failed"] == len(blamed)


async def test_a_task_that_blames_its_server_waits_for_another_one_that_is_busy(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["a", "b"], capacity=1, health=None)
    may_end = asyncio.Event()

    @pool.task(retry=1)
    async def work(server: Server) -> str:
        if server.address == "a":
            raise ServerFailed("no answer")
        await may_end.wait()
        return server.address

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(2)])

        async def has_blamed() -> bool:
            return any([(await handle.status()).server_failures for handle in handles])

        await until(has_blamed)
        (blamed,) = [handle for handle in handles if (await handle.status()).server_failures]
        explanation = await blamed.explain()
        assert "b" in {cause.subject for node in explanation.nodes for cause in node.causes}
        may_end.set()
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == ["b", "b"]
        assert (await blamed.status()).server_failures == 1


async def test_a_task_that_every_server_fails_ends_as_its_retries_say(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["a", "b"], health=None)
    runs = 0
    heard: list[str] = []

    @pool.task(retry=Retry(attempts=2, first=0.001), on_failure=lambda task, seconds, error: heard.append(error.type))
    async def work() -> None:
        nonlocal runs
        runs += 1
        raise ServerFailed("no answer")

    async with engine.worker():
        handle = await work.enqueue()

        async def is_final() -> bool:  # it does not wait here for its next try
            record = await handle.status()
            if record.state is State.SCHEDULED:
                with suppress(IllegalMove):  # it runs already
                    await engine.reschedule(handle.id, delay=0)
            return record.state.is_final

        await until(is_final)
        record = await handle.status()
    assert (record.state, record.attempts, record.server_failures) == (State.FAILED, 2, SERVER_FAILURE_LIMIT)
    assert runs == SERVER_FAILURE_LIMIT + 2
    assert heard == ["ServerFailed"]


async def test_a_task_that_blames_its_only_server_backs_off_and_explain_says_so(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["a"], health=None)
    runs, may_answer = 0, False

    @pool.task
    async def work() -> str:
        nonlocal runs
        runs += 1
        if not may_answer:
            raise ServerFailed("no answer")
        return "answered"

    sentences: list[str] = []

    async with engine.worker():
        handle = await work.enqueue()

        async def is_explained() -> bool:
            explanation = await handle.explain()
            if [cause.why for cause in explanation.causes] == [Why.SERVER_FAILED]:
                sentences.append(explanation.sentence)
            return bool(sentences) and runs >= 2

        await until(is_explained)
        may_answer = True
        assert await handle.result(PATIENCE_SECONDS) == "answered"
        record = await handle.status()
    assert re.fullmatch(
        r"scheduled: it runs again (now|in \d+ s): server a failed it \(\d of 10 times at no cost\), and it has tried "
        "all servers in service",
        sentences[0],
    )
    first, second = record.attempts_made[:2]
    assert (first.outcome, second.outcome is not None) == (AttemptOutcome.SERVER_FAILED, True)
    assert first.ended_at is not None
    assert second.started_at is not None
    assert (second.started_at - first.ended_at).total_seconds() >= 0.5
    assert (record.attempts, record.server_failures) == (1, runs - 1)


async def test_without_a_server_it_is_an_ordinary_error(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=2, first=0.001))
    async def work() -> None:
        raise ServerFailed("there is none")

    async with engine.worker():
        record = await ended(await work.enqueue())
    assert (record.state, record.attempts, record.server_failures) == (State.FAILED, 2, 0)


async def test_a_function_in_a_child_process_can_blame_its_server(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/tasks.db", child_processes=1)
    pool = engine.provider("pool", servers=["a", "b"], health=NEVER_AGAIN)
    work = blames(pool)
    async with engine.worker():
        for handle in await work.enqueue_many([(), ()]):
            assert await handle.result(PATIENCE_SECONDS) == "b"
        weak, _ = await pool.servers()
    assert weak.is_out


# ---------------------------------------------------------------- probes


async def test_a_server_that_is_out_is_probed_instead_of_risking_a_task(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    events: list[ServerEvent] = []
    engine.on_server_event(events.append)
    probed: list[str] = []
    is_broken = True

    async def probe(server: Server) -> bool:
        probed.append(server.address)
        if len(probed) == 1:
            raise ConnectionError("refused")
        return not is_broken

    pool = engine.provider("pool", servers=["weak"], health=Health(failures=1, backoff=0.01, cap=0.01, probe=probe))
    calls = 0

    @pool.task(retry=Retry(attempts=3, first=0.001))
    async def work() -> str:
        nonlocal calls
        calls += 1
        if is_broken:
            raise ConnectionError("broken")
        return "done"

    async with engine.worker(sweep=60):
        handle = await work.enqueue()
        await until(lambda: len(probed) >= 4)
        assert calls == 1, "no task was risked"
        explained = await engine.explain(handle.id)
        assert {cause.why for cause in explained.causes} <= {Why.PROBED, Why.RETRYING, Why.DUE}
        is_broken = False
        assert await handle.result(PATIENCE_SECONDS) == "done"
    assert calls == 2
    assert set(probed) == {"weak"}
    assert [(event.name, event.address, event.reason) for event in events] == [
        ("server_out", "weak", "1 failure in a row"),
        ("server_back", "weak", "its probe succeeded"),
    ]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    lines = [(level, line) for level, line in lines if line.startswith("server weak")]
    assert [(level, line.partition(";")[0]) for level, line in lines] == [
        ("WARNING", "server weak of provider pool is out of service: 1 failure in a row"),
        ("INFO", "server weak of provider pool is back in service: its probe succeeded"),
    ]


async def test_a_probe_that_takes_too_long_has_failed(engine: Engine) -> None:
    started = 0

    async def probe(server: Server) -> None:
        nonlocal started
        started += 1
        if started < 3:
            await asyncio.sleep(3600)

    health = Health(failures=1, backoff=0.01, cap=0.01, probe=probe, probe_timeout=0.02)
    pool = engine.provider("pool", servers=["weak"], health=health)
    is_broken = True

    @pool.task(retry=Retry(attempts=2, first=0.001))
    async def work() -> None:
        nonlocal is_broken
        was_broken, is_broken = is_broken, False
        if was_broken:
            raise ConnectionError("broken")

    async with engine.worker():
        await (await work.enqueue()).result(PATIENCE_SECONDS)
    assert started == 3


async def test_one_of_three_workers_probes_a_server_at_a_time(sqlite_url: str) -> None:
    crowd = Crowd()
    probes = 0

    async def probe(server: Server) -> bool:
        nonlocal probes
        probes += 1
        with crowd.inside(server.address):
            await asyncio.sleep(0.005)
        return probes >= 12

    engines = [Engine(sqlite_url, name=f"worker {number}", sweep=0.05) for number in range(3)]
    kinds = []
    for engine in engines:
        health = Health(failures=1, backoff=0.005, cap=0.005, probe=probe)
        pool = engine.provider("pool", servers=["weak"], health=health)

        async def work(ctx: Context = injected) -> None:
            if ctx.attempt == 1:
                raise ConnectionError("broken")

        kinds.append(pool.task(retry=Retry(attempts=2, first=0.001))(work))
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.worker())
        await (await kinds[0].enqueue()).result(PATIENCE_SECONDS)
    assert probes == 12
    assert crowd.most["weak"] == 1


# ---------------------------------------------------------------- trials, commands, and the pool


async def test_explain_says_that_a_server_is_on_trial(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"weak": 8}, health=Health(failures=1, backoff=0.01, cap=0.01))

    @pool.task
    async def work(fails: bool) -> None:
        if fails:
            raise ConnectionError("broken")
        await crowd.hold("trial")

    async with engine.worker():
        await ended(await work.enqueue(True))
        await work.enqueue(False)
        await crowd.until_inside("trial", 1)
        handle = await work.enqueue(False)
        explained = await engine.explain(handle.id)
        assert "server weak is on trial: one at a time" in str(explained)
        crowd.open()
        await handle.result(PATIENCE_SECONDS)


async def test_commands_repair_a_server_that_is_out_of_service(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["weak", "well"], health=NEVER_AGAIN)

    @pool.task
    async def work() -> None:
        raise ConnectionError("broken")

    @pool.command
    async def repair(server: Server) -> str:
        return f"{server} is repaired"

    async with engine.worker():
        await ended(await work.enqueue())
        (broken,) = [server.address for server in await pool.servers() if server.is_out]
        assert await asyncio.wait_for(repair.send(to=broken), PATIENCE_SECONDS) == f"{broken} is repaired"
        assert set(await asyncio.wait_for(repair.send(to="each"), PATIENCE_SECONDS)) == {"weak", "well"}
        await pool.remove_server(broken)
        await pool.add_server(broken)
        assert not any(server.is_out for server in await pool.servers())


def test_one_server_is_added_closed_and_removed_without_an_event_loop(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/tasks.db")
    pool = engine.provider("pool", servers={"http://a": 2})
    with engine:
        pool.add_server_sync("http://b/", 4)
        pool.close_server_sync("http://a")
        assert {server.address: server.capacity for server in pool.servers_sync()} == {"http://a": 0, "http://b": 4}
        pool.remove_server_sync("http://b")
        with pytest.raises(OptionError, match="provider pool has no server http://b; it has http://a"):
            engine.remove_server_sync("pool", "http://b")
        assert [(entry.verb, entry.value, entry.outcome) for entry in engine.audit_sync()][::-1] == [
            ("add_server", ["http://b", 4], "provider pool has 2 servers now: http://b added with 4"),
            ("close_server", "http://a", "provider pool has 2 servers now: http://a 2 → 0"),
            ("remove_server", "http://b", "provider pool has 1 server now: http://b removed, was 4"),
            ("remove_server", "http://b", "rejected: provider pool has no server http://b; it has http://a"),
        ]
