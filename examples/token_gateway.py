"""A gateway to a language model that permits a number of requests and of tokens in a second, shared by two kinds.

The model is made up here, counts what it gets, and refuses what is too much. No request is refused, because the rates
of two limits hold the tasks back, over all workers, and each task counts as many tokens as its prompt has. Ends after a
few seconds.
"""

import asyncio
import time

from synergon import Engine, Rate

REQUESTS_PER_SECOND = 40
TOKENS_PER_SECOND = 2000
LONGEST_PROMPT = 200

engine = Engine("memory://")
engine.limit("requests", 16, rate=Rate(REQUESTS_PER_SECOND, burst=4, by="starts"))
engine.limit("tokens", rate=Rate(TOKENS_PER_SECOND, burst=100))


class Model:
    """Refuses more than it permits in any second, beside the bursts."""

    def __init__(self) -> None:
        self.received: list[tuple[float, int]] = []
        self.refused = 0

    async def answer(self, prompt: str) -> str:
        now, tokens = time.monotonic(), len(prompt.split())
        self.received.append((now, tokens))
        recent = [count for moment, count in self.received if moment > now - 1]
        most_tokens = TOKENS_PER_SECOND + 100 + LONGEST_PROMPT
        if len(recent) > REQUESTS_PER_SECOND + 5 or sum(recent) > most_tokens:
            self.refused += 1
            raise ConnectionError("429 Too Many Requests")
        await asyncio.sleep(0.02)
        return f"{tokens} tokens"


model = Model()


@engine.task(limits=["requests", "tokens"])
async def ask(prompt: str) -> str:
    return await model.answer(prompt)


@engine.task(limits=["requests", "tokens"])
async def embed(text: str) -> str:
    return await model.answer(text)


async def main() -> None:
    async with engine, engine.worker():
        began = time.monotonic()
        handles = []
        for number in range(60):
            length = 1 + number * 37 % LONGEST_PROMPT
            kind = ask if number % 2 else embed
            handles.append(await kind.with_options(units=length).enqueue("word " * length))
        answers = [await handle.result(timeout=60) for handle in handles]
        elapsed = time.monotonic() - began
    tokens = sum(count for _, count in model.received)
    print(f"{len(answers)} answers, {tokens} tokens in {elapsed:.1f} s, {model.refused} refused")
    assert model.refused == 0
    assert elapsed > (tokens - 100 - LONGEST_PROMPT) / TOKENS_PER_SECOND - 0.5


asyncio.run(main())
