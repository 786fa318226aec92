"""Tasks over pools of servers: capacity, choice, health, and pools that change while they are in use."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.providers.crowd import Crowd
from tests.support import PATIENCE_SECONDS, ended, until, until_state

from synergon import Context, Discard, Engine, Health, OptionError, Retry, RetryAfter, Server, State, injected


async def test_a_server_of_capacity_ten_runs_ten_of_thirty_at_once(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"http://only": 10})

    @pool.task
    async def work(number: int, server: Server) -> tuple[str, int]:
        await crowd.pass_through(server.address, seconds=0.02)
        return server.address, server.slot

    async with engine.worker():
        handles = await work.enqueue_many([(number,) for number in range(30)])
        placed = [await handle.result(PATIENCE_SECONDS) for handle in handles]
        records = [await handle.status() for handle in handles]
    assert crowd.most["http://only"] == 10
    assert {address for address, _ in placed} == {"http://only"}
    assert {slot for _, slot in placed} == set(range(10))
    assert {record.server for record in records} == {"http://only"}


@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
async def test_the_observed_maximum_equals_the_capacity(engine: Engine, capacity: int) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers=["a"], capacity=capacity)

    @pool.task
    async def work(ctx: Context) -> None:
        assert ctx.server is not None
        await crowd.hold(ctx.server.address)

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(capacity + 5)])
        await crowd.until_inside("a", capacity)
        crowd.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["a"] == capacity


async def test_work_goes_to_the_least_loaded_and_never_past_a_capacity(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"a": 4, "b": 2, "c": None, "closed": 0})

    @pool.task
    async def work(server: Server) -> None:
        await crowd.hold(server.address)

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(40)])
        await until(lambda: sum(crowd.now.values()) == 40)
        assert crowd.now["a"] <= 4
        assert crowd.now["b"] <= 2
        assert crowd.now["closed"] == 0
        crowd.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)


async def test_the_backlog_of_one_provider_does_not_delay_another(engine: Engine) -> None:
    crowd = Crowd()
    slow, fast = engine.provider("slow", servers=["s"]), engine.provider("fast", servers=["f"])

    @slow.task
    async def crawl() -> None:
        await crowd.hold("s")

    @fast.task
    async def dash() -> str:
        return "there"

    async with engine.worker():
        waiting = await crawl.enqueue_many([() for _ in range(50)])
        await crowd.until_inside("s", 1)
        assert await (await dash.enqueue()).result(PATIENCE_SECONDS) == "there"
        assert (await engine.counts(kind="crawl"))[State.READY] == 49
        crowd.open()
        await waiting[-1].result(PATIENCE_SECONDS)


async def test_a_retry_prefers_a_server_that_has_not_just_failed_it(engine: Engine) -> None:
    pool = engine.provider("pool", servers={"a": 9, "b": 9}, health=None)
    tried: dict[int, list[str]] = {}

    @pool.task(retry=Retry(attempts=2, first=0.01))
    async def work(number: int, server: Server) -> None:
        tried.setdefault(number, []).append(server.address)
        if len(tried[number]) == 1:
            raise ConnectionError(server.address)

    async with engine.worker():
        for handle in await work.enqueue_many([(number,) for number in range(12)]):
            await handle.result(PATIENCE_SECONDS)
    assert all(first != second for first, second in tried.values())


async def test_a_server_rests_after_failures_in_a_row_and_is_tried_with_one_task(engine: Engine) -> None:
    pool = engine.provider("pool", servers={"weak": 5}, health=Health(failures=3, backoff=0.3, cap=1))
    is_broken = True
    crowd = Crowd()

    @pool.task(retry=Retry(attempts=50, first=0.001, cap=0.01))
    async def work(server: Server) -> None:
        with crowd.inside("trial" if not is_broken else "broken"):
            await asyncio.sleep(0.005)
        if is_broken:
            raise ConnectionError("broken")

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(10)])

        async def is_backed_off() -> bool:
            (server,) = await pool.servers()
            return server.backs_off_until is not None

        await until(is_backed_off)
        is_broken = False
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
        (server,) = await pool.servers()
    assert server.failures == 0
    assert server.backs_off_until is None
    assert crowd.most["trial"] <= 5


async def test_an_error_of_the_task_itself_does_not_count_against_the_server(engine: Engine) -> None:
    pool = engine.provider("pool", servers={"a": 2}, health=Health(failures=1, backoff=60, cap=60))

    @pool.task(retry=Retry(attempts=2, first=0.01))
    async def bad(how: str, ctx: Context = injected) -> None:
        if how == "discard":
            raise Discard("not worth it")
        if ctx.attempt == 1:
            raise RetryAfter(0.01)

    @pool.task(name="typed")
    async def typed(number: int) -> int:
        return number

    async with engine.worker():
        for how in ("discard", "later"):
            await ended(await bad.enqueue(how))
        (server,) = await pool.servers()
        assert server.failures == 0
        assert await (await typed.enqueue(7)).result(PATIENCE_SECONDS) == 7


async def test_a_subclass_of_a_control_exception_does_not_count_either(engine: Engine) -> None:
    pool = engine.provider("pool", servers={"a": 2}, health=Health(failures=1, backoff=60, cap=60))

    class Busy(RetryAfter):
        pass

    @pool.task(retry=Retry(attempts=2))
    async def work(ctx: Context = injected) -> None:
        if ctx.attempt == 1:
            raise Busy(0.01)

    async with engine.worker():
        await (await work.enqueue()).result(PATIENCE_SECONDS)
        (server,) = await pool.servers()
    assert server.failures == 0


async def test_a_server_is_tried_again_when_its_rest_is_over_whatever_the_sweep(engine: Engine) -> None:
    pool = engine.provider("pool", servers={"a": 1}, health=Health(failures=1, backoff=0.3, cap=1))
    tries = 0

    @pool.task(retry=Retry(attempts=2, first=0.001))
    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionError("broken")

    async with engine.worker(sweep=60):
        await (await work.enqueue()).result(PATIENCE_SECONDS)
    assert tries == 2


async def test_a_timeout_counts_against_the_server(engine: Engine) -> None:
    pool = engine.provider("pool", servers={"a": 2}, health=Health(failures=1, backoff=60, cap=60))

    @pool.task(timeout=0.05)
    async def hang() -> None:
        await asyncio.sleep(60)

    async with engine.worker():
        await ended(await hang.enqueue())
        (server,) = await pool.servers()
    assert server.failures == 1
    assert server.backs_off_until is not None


async def test_added_servers_are_used_at_once_and_removed_ones_finish_their_work(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"old": 2})

    @pool.task
    async def work(server: Server) -> str:
        await crowd.hold(server.address)
        return server.address

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(12)])
        await crowd.until_inside("old", 2)
        await pool.set_servers({"new": 3})
        await crowd.until_inside("new", 3)
        assert crowd.now["old"] == 2
        found = {server.address: (server.in_use, server.is_removed) for server in await pool.servers()}
        assert found == {"new": (3, False), "old": (2, True)}
        await pool.set_servers({"new": 3, "old": 3})  # back while its old work runs: one more, not three
        await crowd.until_inside("old", 3)
        assert crowd.now["old"] == 3
        crowd.open()
        answers = Counter([await handle.result(PATIENCE_SECONDS) for handle in handles])
    assert set(answers) == {"old", "new"}
    assert crowd.most["old"] == 3
    assert crowd.most["new"] == 3


async def test_tasks_of_an_empty_pool_wait_until_it_has_a_server(engine: Engine) -> None:
    pool = engine.provider("pool")

    @pool.task
    async def work(server: Server) -> str:
        return server.address

    async with engine.worker():
        handle = await work.enqueue()
        await asyncio.sleep(0.05)
        assert (await handle.status()).state is State.READY
        await pool.set_servers(["here"])
        assert await handle.result(PATIENCE_SECONDS) == "here"


async def test_a_pool_set_by_an_operator_survives_a_restart_of_unchanged_code(url: str) -> None:
    def make(servers: dict[str, int]) -> Engine:
        engine = Engine(url, sweep=60)
        engine.provider("pool", servers=servers)
        engine.limit("license", 3)
        return engine

    async with make({"a": 1}) as keeps_the_memory_store_alive:
        async with make({"a": 1}) as first:
            await first.set_servers("pool", {"b": 2})
            await first.set_limit("license", 7)
        async with make({"a": 1}) as again:
            assert [(server.address, server.capacity) for server in await again.servers()] == [("b", 2)]
            assert [limit.value for limit in await again.limits()] == [7]
        async with make({"a": 5}) as changed:
            assert [(server.address, server.capacity) for server in await changed.servers()] == [("a", 5)]
            assert [limit.value for limit in await changed.limits()] == [7]
        assert keeps_the_memory_store_alive is not None


async def test_a_limit_counts_a_server_of_two_providers_once(engine: Engine) -> None:
    crowd = Crowd()
    engine.limit("http://gpu1", 3)
    chat, images = (engine.provider(name, servers={"http://gpu1": 2}) for name in ("chat", "images"))

    @chat.task
    async def answer(server: Server) -> None:
        await crowd.hold(server.address)

    @images.task
    async def draw(server: Server) -> None:
        await crowd.hold(server.address)

    async with engine.worker():
        handles = [*await answer.enqueue_many([()] * 4), *await draw.enqueue_many([()] * 4)]
        await crowd.until_inside("http://gpu1", 3)
        crowd.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["http://gpu1"] == 3


@pytest.mark.parametrize("capacity", [None, 0])
async def test_a_server_without_a_capacity_to_count_may_have_two_providers(
    engine: Engine, capacity: int | None
) -> None:
    engine.provider("chat", servers={"http://gpu1": 2})
    images = engine.provider("images", servers={"http://gpu1": capacity})
    async with engine:
        await images.set_servers({"http://gpu1": capacity})
        assert [server.capacity for server in await engine.servers()] == [2, capacity]


async def test_an_operator_cannot_give_a_server_to_a_second_provider(engine: Engine) -> None:
    engine.limit("http://shared", 3)
    chat = engine.provider("chat", servers=["http://gpu1", "http://shared"])
    images = engine.provider("images", servers=["http://gpu2"])
    async with engine:
        with pytest.raises(OptionError) as rejected:
            await images.set_servers(["http://gpu1/?x"])
        assert str(rejected.value) == (
            "providers 'chat' and 'images' both name the server 'http://gpu1', and each would give it its full "
            "capacity; write engine.limit('http://gpu1', ...) above them, which counts the tasks of both, or take it "
            "from one of them"
        )
        assert [server.address for server in await images.servers()] == ["http://gpu2"]
        assert (await engine.audit())[0].outcome == f"rejected: {rejected.value}"

        await images.set_servers(["http://shared"])
        await chat.set_servers(["http://shared"])
        await images.set_servers(["http://gpu1"])
        assert [server.address for server in await images.servers()] == ["http://gpu1"]


async def test_labels_stay_with_the_server_on_this_node(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["a"])

    @pool.task
    async def count(server: Server) -> int:
        server.labels["count"] = server.labels.get("count", 0) + 1
        return int(server.labels["count"])

    async with engine.worker():
        results = [await (await count.enqueue()).result(PATIENCE_SECONDS) for _ in range(3)]
    assert results == [1, 2, 3]


async def test_a_permit_is_freed_only_when_the_task_function_has_ended(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers=["a"], health=None)

    @pool.task(timeout=0.05)
    async def stubborn() -> None:
        with crowd.inside("a"):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)

    async with engine.worker():
        handles = await stubborn.enqueue_many([(), ()])
        for handle in handles:
            await until_state(handle, State.FAILED)
    assert crowd.most["a"] == 1
