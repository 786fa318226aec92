"""Unique keys: one live task per key, and a debounce made of it.

Somebody types; every keystroke asks for a new index of the document. Only the last text is indexed, once, when there
was a short silence.
"""

import asyncio

from synergon import Engine, KeyConflict

engine = Engine("memory://")
indexed: list[str] = []
may_end = asyncio.Event()


@engine.task
async def index(document: int, text: str) -> int:
    await may_end.wait()
    indexed.append(f"{document}: {text}")
    return len(text)


async def type_text(text: str) -> None:
    debounced = index.with_options(key="document-7", delay=1, on_conflict="replace")
    ids = set()
    for length in range(1, len(text) + 1):
        handle = await debounced.enqueue(7, text[:length])
        ids.add(handle.id)
        await asyncio.sleep(0.02)
    assert len(ids) == 1, "the same task, again and again replaced"
    print(f"typed {len(text)} characters, one task: {ids}")
    assert await handle.result(timeout=10) == len(text)


async def main() -> None:
    async with engine, engine.worker():
        may_end.set()
        await type_text("synergon")
        print("indexed:", indexed)
        assert indexed == ["7: synergon"]

        may_end.clear()  # from here on, functions last until they are allowed to end
        # A key is free again when its task has ended; while it lives, `return` hands out the live task ...
        first = await index.with_options(key="document-7").enqueue(7, "one")
        second = await index.with_options(key="document-7").enqueue(7, "two")
        print(f"the second enqueue created a task: {second.created}")
        assert second.id == first.id
        assert (first.created, second.created) == (True, False)

        # ... and `raise` refuses.
        try:
            await index.with_options(key="document-7", on_conflict="raise").enqueue(7, "three")
            raise AssertionError("the key was taken")
        except KeyConflict as conflict:
            print(f"refused: {conflict}")
        may_end.set()
        await first.result(timeout=10)
        assert indexed == ["7: synergon", "7: one"]

        # With `unique_for` the key outlives its task: nothing is indexed twice within the hour.
        hourly = index.with_options(key="document-8", unique_for="1h")
        once = await hourly.enqueue(8, "four")
        await once.result(timeout=10)
        again = await hourly.enqueue(8, "five")
        print(f"within the hour it is still task {again.id}")
        assert (again.id, again.created) == (once.id, False)
        assert indexed[-1] == "8: four"


if __name__ == "__main__":
    asyncio.run(main())
