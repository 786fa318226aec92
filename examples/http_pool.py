"""Real HTTP requests over three local servers with different capacities, one of which breaks and recovers.

The servers are started here, refuse more requests at once than they can take, and count them. While one is broken, its
tasks are retried elsewhere and it is given a rest; then it is tried with one request, and used again. Ends after a few
seconds. Needs `aiohttp`.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import aiohttp
from aiohttp import web

from synergon import Context, Engine, Health, Retry, Server, injected

CAPACITIES = (4, 2, 1)

engine = Engine("memory://")
pool = engine.provider("pool", health=Health(failures=3, backoff="200ms", cap="1s"))


class LocalServer:
    """Answers after a moment, unless it is broken."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.address = ""
        self.is_broken = False
        self.answered = 0
        self.now = 0
        self.most = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.01)
            if self.is_broken:
                return web.Response(status=500, text="broken")
            self.answered += 1
            return web.Response(text=f"{self.address} says hello {request.query['name']}")
        finally:
            self.now -= 1

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/hello", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"
        return runner


attempts: Counter[int] = Counter()


@pool.task(retry=Retry(attempts=10, first=0.02, cap=0.2), timeout=2)
async def hello(name: str, server: Server = injected, ctx: Context = injected) -> str:
    attempts[ctx.attempt] += 1
    async with aiohttp.ClientSession() as session, session.get(f"{server}/hello", params={"name": name}) as response:
        response.raise_for_status()
        return await response.text()


async def until_rested(address: str, *, rests: bool) -> None:
    while True:
        found = {server.address: server.backs_off_until is not None for server in await pool.servers()}
        if found[address] is rests:
            return
        await asyncio.sleep(0.01)


async def main() -> None:
    servers = [LocalServer(capacity) for capacity in CAPACITIES]
    async with AsyncExitStack() as stack:
        for server in servers:
            runner = await server.start()
            stack.push_async_callback(runner.cleanup)
        await stack.enter_async_context(engine.worker())
        await pool.set_servers({server.address: server.capacity for server in servers})

        handles = await hello.enqueue_many([(f"number {number}",) for number in range(100)])
        for handle in handles:
            await handle.result(timeout=30)
        print("all well:", [server.answered for server in servers], "answered by each")

        weak = servers[0]
        weak.is_broken = True
        handles = await hello.enqueue_many([(f"number {number}",) for number in range(100)])
        await until_rested(weak.address, rests=True)
        for handle in handles:
            await handle.result(timeout=30)
        print("one is broken:", [server.answered for server in servers], f"and {weak.address} rests")

        weak.is_broken = False
        before = weak.answered
        while weak.answered == before:  # its rest ends by itself, and one request tries it
            await (await hello.enqueue("again")).result(timeout=30)
        await until_rested(weak.address, rests=False)
        handles = await hello.enqueue_many([(f"number {number}",) for number in range(100)])
        for handle in handles:
            await handle.result(timeout=30)
        print("it is back:", [server.answered for server in servers], "answered by each")

    assert all(server.most <= server.capacity for server in servers), "no server had more at once than it can take"
    assert weak.answered > before + 10
    assert sum(attempts.values()) > attempts[1], "what the broken one failed was tried again"


if __name__ == "__main__":
    asyncio.run(main())
