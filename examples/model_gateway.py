"""A gateway over two model servers, one of which fails half of its requests at once, and is repaired in the end.

The servers are made up here. A task that gets no answer blames its server (`ServerFailed`): it runs on the other one,
although it has only one attempt. The weak server is taken out of service, probed while it is out, and comes back after
a command has repaired it. Every task succeeds. Ends after a few seconds.
"""

import asyncio
import random
from collections import Counter

from synergon import Engine, Health, Server, ServerEvent, ServerFailed

REQUESTS = 500


class Model:
    """A made-up model server. A weak one refuses half of its requests at once."""

    def __init__(self, *, is_weak: bool) -> None:
        self.is_weak = is_weak
        self.chances = random.Random(7)
        self.calls: Counter[str] = Counter()

    async def complete(self, prompt: str) -> str:
        if self.is_weak and self.chances.random() < 0.5:
            self.calls["refused"] += 1
            raise ConnectionError("connection reset")
        await asyncio.sleep(0.005)
        self.calls["answered"] += 1
        return f"{prompt}: done"


models = {"http://gpu1:8000": Model(is_weak=False), "http://gpu2:8000": Model(is_weak=True)}


async def probe(server: Server) -> bool:
    """Called while a server is out of service, by one worker at a time. Ask what your tasks ask."""
    return not models[server.address].is_weak  # here: a small request to the server


engine = Engine("memory://")
gateway = engine.provider(
    "gateway",
    servers=dict.fromkeys(models, 8),
    health=Health(rate=0.3, window=20, backoff="50ms", cap="1s", probe=probe),
)


@gateway.task
async def complete(prompt: str, server: Server) -> str:
    try:
        return await models[server.address].complete(prompt)
    except (ConnectionError, TimeoutError) as error:
        raise ServerFailed(f"{server}: {error}") from error


@gateway.command
async def repair(server: Server) -> None:
    models[server.address].is_weak = False


changes: list[str] = []
is_back = asyncio.Event()


@engine.on_server_event
async def note(event: ServerEvent) -> None:
    changes.append(event.name)
    print(f"{event.address}: {event.name}: {event.reason}")
    if event.name == "server_back":
        is_back.set()


async def main() -> None:
    weak = models["http://gpu2:8000"]
    async with engine.worker():
        handles = await complete.enqueue_many([(f"prompt {number}",) for number in range(REQUESTS)])
        for handle in handles:
            await handle.result(timeout=30)
        print(f"{REQUESTS} requests answered; the weak server refused {weak.calls['refused']} of them first")
        assert changes == ["server_out"]
        assert weak.calls["refused"] < REQUESTS / 20

        await repair.send(to="http://gpu2:8000")  # commands reach a server that is out of service
        await is_back.wait()  # the next probe succeeds
        before = weak.calls["answered"]
        for handle in await complete.enqueue_many([(f"more {number}",) for number in range(REQUESTS)]):
            await handle.result(timeout=30)
        assert weak.calls["answered"] > before + REQUESTS / 10
        print("after the repair both servers work")


if __name__ == "__main__":
    asyncio.run(main())
