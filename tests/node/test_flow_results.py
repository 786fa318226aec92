"""Results that steps get: items of batches, results that are not stored, and attempts that end before they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate

from synergon import Batch, Context, Engine, Event, OptionError, Reason, State, TaskFailed, injected
from synergon.model.dependencies import Dependency
from synergon.stores.rules import dependencies


async def test_items_of_a_batch_get_the_results_of_their_steps(engine: Engine) -> None:
    sizes: list[int] = []

    @engine.task
    async def number(value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return value

    @engine.task(batch=Batch(size=4, wait="30s"))
    async def double(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return [2 * value for value in values]

    @engine.task
    async def total(values: list[int | None]) -> int:
        return sum(value or 0 for value in values)

    async with engine.worker():
        flow = engine.flow("batched")
        doubled = [flow.add(double.call(flow.add(number.call(value)).result)) for value in range(4)]
        flow.add(total.call([step.result for step in doubled]))
        assert await (await flow.enqueue()).result(PATIENCE_SECONDS) == 12
    assert sizes == [4]


async def test_a_batch_item_whose_result_is_missing_fails_alone(engine: Engine) -> None:
    @engine.task
    async def number(value: int) -> int:
        if value == 1:
            raise ValueError(value)
        return value

    @engine.task(batch=Batch(size=3, wait="30s"))
    async def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    async with engine.worker():
        flow = engine.flow("batched")
        for value in range(3):
            flow.add(double.call(flow.add(number.call(value)).result), if_dependency_fails="run")
        run = await flow.enqueue()
        await run.wait(PATIENCE_SECONDS)
        records = [await handle.status() for handle in run.handles[1::2]]
    assert [(record.state, record.result) for record in records] == [
        (State.SUCCEEDED, 0),
        (State.FAILED, None),
        (State.SUCCEEDED, 4),
    ]


async def test_a_map_creates_items_of_batches(engine: Engine) -> None:
    @engine.task
    async def numbers(count: int) -> list[int]:
        return list(range(count))

    @engine.task(batch=Batch(size=3, wait="30s"))
    async def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    @engine.task
    async def total(values: list[int | None]) -> int:
        return sum(value or 0 for value in values)

    async with engine.worker():
        flow = engine.flow("mapped")
        flow.add(total.call(flow.map(double, over=flow.add(numbers.call(3))).results))
        assert await (await flow.enqueue()).result(PATIENCE_SECONDS) == 6


async def test_a_map_over_two_items_with_one_key_fails_and_creates_nothing(engine: Engine) -> None:
    @engine.task
    async def numbers() -> list[int]:
        return [2, 1, 1]

    @engine.task(key="{number}")
    async def keyed(number: int) -> int:
        return number

    @engine.task
    async def total(values: list[int]) -> int:
        return sum(values)

    async with engine.worker():
        flow = engine.flow("mapped")
        flow.add(total.call(flow.map(keyed, over=flow.add(numbers.call())).results))
        run = await flow.enqueue()
        assert (await run.wait(PATIENCE_SECONDS)).counts == {State.SUCCEEDED: 1, State.FAILED: 1, State.CANCELLED: 1}
        record = await run.handles[1].status()
    message = record.errors[-1].message
    assert 'items 1 ({"number":1}) and 2 ({"number":1}) have the same unique key' in message
    assert "of task 'keyed'" in message
    assert "remove repeated items" in message


async def test_a_map_whose_item_would_wait_for_itself_fails_with_what_to_do(engine: Engine) -> None:
    reasons: list[Reason | None] = []

    @engine.on_event
    def note(event: Event) -> None:
        if event.state is State.FAILED:
            reasons.append(event.reason)

    @engine.task
    async def numbers() -> list[int]:
        return [2, 1]

    @engine.task(key="{number}")
    async def keyed(number: int) -> int:
        return number

    async with engine.worker():
        flow = engine.flow("circle")
        flow.add(keyed.call(1), after=[flow.map(keyed, over=flow.add(numbers.call()))])
        run = await flow.enqueue()
        record = await run.wait(PATIENCE_SECONDS)
        failed, last = (await run.steps())[1:]
    assert (record.state, failed.task.reason, last.task.state) == (State.FAILED, Reason.ERROR, State.CANCELLED)
    message = failed.task.errors[-1].message
    assert f"holds the unique key of an item: task {last.task.id} of kind 'keyed' with the key '1'" in message
    assert "use another key" in message
    assert reasons == [Reason.ERROR]


async def test_the_options_of_a_mapped_kind_are_those_of_its_items(engine: Engine) -> None:
    tags: dict[str, int] = {}

    @engine.task
    async def words() -> list[str]:
        return ["a", "b", "c"]

    @engine.task(title="{word}", fair_by=lambda word: "one tenant")
    async def shown(word: str, ctx: Context = injected) -> str:
        tags[word] = (await engine.get(ctx.task_id)).fair_tag
        return word

    async with engine.worker():
        for kind in (shown, shown.with_options(title="Page {word}", weight=0.5, priority=3)):
            flow = engine.flow("mapped")
            flow.map(kind, over=flow.add(words.call()))
            run = await flow.enqueue()
            assert (await run.wait(PATIENCE_SECONDS)).state is State.SUCCEEDED
            items = [step.task for step in (await run.steps())[2:]]
            if kind is shown:
                assert [item.title for item in items] == ["a", "b", "c"]
                continue
            assert [(item.title, item.priority) for item in items] == [("Page a", 3), ("Page b", 3), ("Page c", 3)]
            assert (tags["b"] - tags["a"], tags["c"] - tags["b"]) == (2_000_000, 2_000_000), "half of the turns"


@pytest.mark.parametrize("on_conflict", ["raise", "replace"])
def test_a_map_rejects_what_an_item_cannot_do_if_its_key_is_taken(memory_url: str, on_conflict: Any) -> None:
    engine = Engine(memory_url)

    @engine.task
    async def words() -> list[str]:
        return []

    @engine.task(key="{word}")
    async def keyed(word: str) -> None: ...

    @engine.task(key="{word}", on_conflict=on_conflict)
    async def strict(word: str) -> None: ...

    flow = engine.flow("mapped")
    step = flow.add(words.call())
    for kind in (keyed.with_options(on_conflict=on_conflict), strict):
        with pytest.raises(OptionError, match=rf"is a map and has on_conflict='{on_conflict}'; .* gets that task"):
            flow.map(kind, over=step)
    flow.map(strict.with_options(on_conflict="return"), over=step)


async def test_a_result_that_is_not_stored_cannot_be_an_argument(engine: Engine) -> None:
    @engine.task(keep_result=False)
    async def forgotten(value: int) -> list[int]:
        return [value]

    @engine.task
    async def listed() -> list[int]:
        return [1]

    @engine.task
    async def last(values: Any) -> None: ...

    flow = engine.flow("forgotten")
    step = flow.add(forgotten.call(1))
    items = flow.map(forgotten, over=flow.add(listed.call()))
    uses: list[Callable[[], object]] = [
        lambda: flow.add(last.call(step.result)),
        lambda: flow.add(last.call([step.result])),
        lambda: flow.add(last.call(items.results)),
        lambda: flow.map(last, over=step),
    ]
    for use in uses:
        with pytest.raises(OptionError, match=r"task 'forgotten' has keep_result=False.*order the steps with after="):
            use()
    flow.add(last.call([]), after=[step, items])
    async with engine.worker():
        run = await flow.enqueue()
        assert (await run.wait(PATIENCE_SECONDS)).state is State.SUCCEEDED


async def test_results_that_are_too_large_together_fail_the_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "RESULTS_LIMIT_BYTES", 100)

    @engine.task
    async def text(length: int) -> str:
        return "x" * length

    @engine.task
    async def joined(texts: list[str]) -> int:
        return len("".join(texts))

    async with engine.worker():
        flow = engine.flow("small")
        flow.add(joined.call([flow.add(text.call(40)).result for _ in range(2)]))
        assert await (await flow.enqueue()).result(PATIENCE_SECONDS) == 80
        flow = engine.flow("large")
        flow.add(joined.call([flow.add(text.call(60)).result for _ in range(2)]))
        with pytest.raises(TaskFailed, match=r"have more than 16 MiB together; store them elsewhere"):
            await (await flow.enqueue()).result(PATIENCE_SECONDS)


def test_no_template_can_use_a_result_that_is_not_known(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task
    async def word() -> str:
        return ""

    @engine.task(limit_by="{text}", limit=1)
    async def limited(text: str) -> None: ...

    @engine.task(fair_by="{text}")
    async def fair(text: str) -> None: ...

    @engine.task(batch=Batch(size=2, by="{item}"))
    async def batched(texts: list[str]) -> None: ...

    @engine.task(batch=Batch(size=2), title="the word {item}")
    async def titled(texts: list[str]) -> None: ...

    flow = engine.flow("templates")
    step = flow.add(word.call())
    for kind, what in ((limited, "limit_by"), (fair, "fair_by"), (batched, "Batch by")):
        with pytest.raises(OptionError, match=f"{what} of task .* the result of a step that is not known"):
            kind.call(step.result)
    with pytest.raises(OptionError, match="title of task 'titled' uses 'item', the result of a step"):
        flow.add(titled.call(step.result))


@pytest.mark.parametrize("uses_result", [False, True])
async def test_a_step_of_a_producer_without_the_function_gets_its_limit_key(
    url: str, new_engine: NewEngine, uses_result: bool
) -> None:
    worker = new_engine(url)

    @worker.task
    async def word() -> str:
        return "a"

    @worker.task(limit_by="{text}", limit=1)
    async def limited(text: str) -> str:
        return text

    async with new_engine(url) as producer:
        flow = producer.flow("by name")
        first = flow.add(producer.call("word"))
        flow.add(producer.call("limited", text=first.result if uses_result else "a"), after=[first])
        run_id = (await flow.enqueue()).id
        async with worker.worker():
            run = await worker.flows.get(run_id)
            assert await run.result(PATIENCE_SECONDS) == "a"
            assert (await run.last.status()).limit_key == "a"


@pytest.mark.parametrize("way", ["cancel", "stop"])
async def test_an_attempt_that_is_to_end_does_not_wait_for_results(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    gate = Gate()
    ran: list[int] = []

    @engine.task
    async def step(value: int) -> int:
        ran.append(value)
        return value + 1

    async with engine:
        read = engine._store.dependencies

        async def read_late(ids: Sequence[int], *, with_results: bool = False) -> list[list[Dependency]]:
            await gate.hold()
            return await read(ids, with_results=with_results)

        monkeypatch.setattr(engine._store, "dependencies", read_late)
        flow = engine.flow("late")
        flow.add(step.call(flow.add(step.call(1)).result))
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with engine.worker(grace=0):
                run = await flow.enqueue()
                await gate.until_reached()
                if way == "cancel":
                    await run.cancel()
                    assert (await run.wait()).state is State.CANCELLED
            gate.open()
        record = await run.last.status()
    assert record.state is (State.CANCELLED if way == "cancel" else State.READY)
    assert (ran, record.attempts) == ([1], 1 if way == "cancel" else 0)
