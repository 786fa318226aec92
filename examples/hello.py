"""The smallest complete program: a task, a worker in the same process, a result. Ends in a moment."""

import asyncio

from synergon import Engine

engine = Engine("memory://")  # nothing is written to disk; "sqlite:///app.db" keeps tasks in a file


@engine.task
async def greet(name: str) -> str:
    return f"hello {name}"


async def main() -> None:
    async with engine, engine.worker():
        handle = await greet.enqueue("Ada")
        answer = await handle.result(timeout=10)
        print(f"task {handle.id} says: {answer}")
        assert answer == "hello Ada"

        # The decorated function is still a function.
        assert await greet("Bob") == "hello Bob"


if __name__ == "__main__":
    asyncio.run(main())
