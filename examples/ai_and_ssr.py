"""Two kinds of work over two pools of servers: inference on GPU servers, pages on Node.js renderers.

The prompts have six of the worker's slots at most, so a backlog of prompts never delays a page. No server gets more at
once than it can take, over all nodes. The renderers are declared in the style of a class that serves all of its kinds,
the GPUs in the style of a decorated function; both are the same thing. Ends after a second or two.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from synergon import Engine, Provider, ProviderTask, Retry, Server

engine = Engine("memory://")

busy: Counter[str] = Counter()
busiest: Counter[str] = Counter()


async def work_on(server: Server, seconds: float) -> None:
    """What a request to the server would be; it notes how many are under way."""
    busy[server.address] += 1
    busiest[server.address] = max(busiest[server.address], busy[server.address])
    await asyncio.sleep(seconds)
    busy[server.address] -= 1


# ---------------------------------------------------------------- GPU servers

gpu = engine.provider("gpu", servers={"gpu-server-1:8080": 2, "gpu-server-2:8080": 1}, slots=6, timeout=5)


@gpu.task(retry=Retry(attempts=3, first=0.05))
async def infer(server: Server, prompt: str) -> str:
    await work_on(server, random.uniform(0.02, 0.05))
    return f"{prompt!r} answered by {server}"


@gpu.command
async def load_model(server: Server, name: str) -> str:
    server.labels["model"] = name  # later functions on this server find it
    return f"{server} has loaded {name}"


# ---------------------------------------------------------------- renderers


@dataclass
class Page:
    path: str


class Ssr(Provider):
    """Renders pages."""

    kinds: ClassVar = {"render": Page}

    async def handle(self, task: ProviderTask[Page], server: Server) -> str:
        await work_on(server, random.uniform(0.01, 0.02))
        return f"{task.arguments.path} rendered by {server}"


ssr = Ssr(engine, "ssr", servers=["ssr-node-1:3000", "ssr-node-2:3000", "ssr-node-3:3000"], timeout=2)


async def main() -> None:
    async with engine.worker():
        prompts = await infer.enqueue_many([(f"prompt {number}",) for number in range(20)])
        # A command goes ahead of every prompt that waits, on each server.
        for answer in (await load_model.send("llama", to="each")).values():
            print(answer)

        pages = [
            engine.call("render", Page(path)).with_options(priority=10) for path in ("/home", "/pricing", "/about")
        ]
        for handle in await engine.enqueue(pages):
            print(await handle.result(timeout=10))

        # A new server takes its share at once; the one that is gone finishes what it has.
        await gpu.set_servers({"gpu-server-1:8080": 2, "gpu-server-3:8080": 4})
        answers = [await handle.result(timeout=10) for handle in prompts]
        print(answers[-1])
        for server in await engine.servers():
            print(
                f"{server.provider}: {server.address} has {server.capacity} places, most at once was "
                f"{busiest[server.address]}"
            )

    assert busiest["gpu-server-1:8080"] <= 2
    assert busiest["gpu-server-2:8080"] <= 1
    assert busiest["gpu-server-3:8080"] <= 4
    assert sum("gpu-server-3" in answer for answer in answers) > 0


if __name__ == "__main__":
    asyncio.run(main())
