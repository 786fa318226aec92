"""How a function may end: a failure that heals, a rate limit, a wait, a lost cause, and too many failures."""

import asyncio

from synergon import Context, Discard, Engine, Reason, Retry, RetryAfter, Snooze, State, TaskFailed, injected

engine = Engine("memory://")
quickly = Retry(attempts=4, first=0.05, factor=2, jitter=0)  # pauses of 0.05, 0.1 and 0.2 seconds
parts_ready: list[str] = []


@engine.task(retry=quickly)
async def fetch(url: str, ctx: Context = injected) -> str:
    """Fails twice, then works: the policy decides the pauses."""
    if ctx.attempt < 3:
        raise ConnectionError(f"{url} does not answer")
    return f"fetched {url} at attempt {ctx.attempt}"


@engine.task(retry=quickly)
async def polite(ctx: Context = injected) -> int:
    """The other side says when to come back; that replaces the policy's pause, and counts as an attempt."""
    if ctx.attempt == 1:
        raise RetryAfter(0.1, "429 Too Many Requests")
    return ctx.attempt


@engine.task
async def assemble(ctx: Context = injected) -> int:
    """Not ready yet is no failure: a snooze costs no attempt, so this works with a single one."""
    if not parts_ready:
        parts_ready.append("wheel")
        raise Snooze(0.1)
    return ctx.attempt


@engine.task(retry=quickly)
async def hopeless() -> None:
    """No retry will help."""
    raise Discard("the account was closed")


@engine.task(retry=Retry(attempts=3, first=0.02))
async def broken() -> None:
    raise ValueError("always")


async def main() -> None:
    async with engine, engine.worker():
        print(await (await fetch.enqueue("https://example.org")).result(timeout=10))
        print("polite succeeded at attempt", attempt := await (await polite.enqueue()).result(timeout=10))
        assert attempt == 2
        print("assemble was snoozed and still is at attempt", attempt := await (await assemble.enqueue()).result(10))
        assert attempt == 1

        for kind, reason, attempts in ((hopeless, Reason.DISCARDED, 1), (broken, Reason.EXHAUSTED, 3)):
            handle = await kind.enqueue()
            try:
                await handle.result(timeout=10)
            except TaskFailed as failure:
                print(failure)
            record = await handle.status()
            assert (record.state, record.reason, len(record.errors)) == (State.FAILED, reason, attempts)


if __name__ == "__main__":
    asyncio.run(main())
