"""Flows: results become arguments, steps wait for steps, and a flow is one unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, until, until_state

from synergon import (
    Context,
    Engine,
    Flow,
    Handle,
    IllegalMove,
    KeyConflict,
    OptionError,
    PayloadError,
    Reason,
    State,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
)


@dataclass
class Row:
    region: str
    number: int


class Shop:
    """The flow of the guide, whose functions can be made to fail or to wait."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.broken: set[str] = set()
        self.ran: list[str] = []
        self.held: dict[str, Gate] = {}

        @engine.task
        async def fetch(region: str) -> list[Row]:
            await self._note(f"fetch {region}")
            return [Row(region, number) for number in range(2)]

        @engine.task
        async def merge(first: list[Row], second: list[Row]) -> list[Row]:
            await self._note("merge")
            return first + second

        @engine.task
        async def render(row: Row) -> str:
            await self._note(f"render {row.region} {row.number}")
            return f"{row.region}{row.number}"

        @engine.task
        async def publish(ctx: Context, pages: list[str]) -> dict[str, Any]:
            await self._note("publish")
            return {"pages": pages, "states": [str(need.state) for need in ctx.dependencies if need.item is not None]}

        self.fetch, self.merge, self.render, self.publish = fetch, merge, render, publish

    async def _note(self, name: str) -> None:
        if name in self.held:
            await self.held[name].hold()
        if name in self.broken:
            raise ValueError(name)
        self.ran.append(name)

    def flow(self) -> Flow:
        flow = self.engine.flow("import")
        first, second = flow.add(self.fetch.call("eu")), flow.add(self.fetch.call("us"))
        both = flow.add(self.merge.call(first.result, second.result))
        pages = flow.map(self.render, over=both)
        flow.add(self.publish.call(pages.results), if_dependency_fails="run")
        return flow


PAGES = ["eu0", "eu1", "us0", "us1"]


async def test_results_become_arguments_and_a_map_has_one_task_for_each_item(engine: Engine) -> None:
    shop = Shop(engine)
    async with engine.worker():
        run = await shop.flow().enqueue()
        assert await run.result(PATIENCE_SECONDS) == {"pages": PAGES, "states": ["succeeded"] * 4}
        record = await run.wait(PATIENCE_SECONDS)
        steps = await run.steps()
        found = await (await engine.flows.get(run.id)).result(PATIENCE_SECONDS)
    assert (record.name, record.state, record.counts) == ("import", State.SUCCEEDED, {State.SUCCEEDED: 9})
    assert [step.task.kind for step in steps] == ["fetch", "fetch", "merge", "render", "publish", *["render"] * 4]
    assert found["pages"] == PAGES
    assert len(shop.ran) == 8


async def test_a_failed_item_is_left_out_and_a_retry_of_the_flow_mends_it(engine: Engine) -> None:
    shop = Shop(engine)
    shop.broken = {"render us 0"}
    async with engine.worker():
        run = await shop.flow().enqueue()
        result = await run.result(PATIENCE_SECONDS)
        assert result == {"pages": ["eu0", "eu1", "us1"], "states": ["succeeded", "succeeded", "failed", "succeeded"]}
        assert (await run.wait(PATIENCE_SECONDS)).state is State.FAILED
        shop.broken.clear()
        shop.ran.clear()
        assert await run.retry() == 1
        assert (await run.wait(PATIENCE_SECONDS)).state is State.SUCCEEDED
        assert await run.retry() == 0
    assert shop.ran == ["render us 0"]  # publish ran in spite of the failure, and does not run again


async def test_a_failed_middle_step_that_is_mended_and_retried_completes_the_flow(engine: Engine) -> None:
    shop = Shop(engine)
    shop.broken = {"merge"}
    async with engine.worker():
        run = await shop.flow().enqueue()
        assert (await run.result(PATIENCE_SECONDS)) == {"pages": [], "states": []}
        steps = await run.steps()
        assert [(step.task.state, step.task.reason) for step in steps[2:4]] == [
            (State.FAILED, Reason.ERROR),
            (State.CANCELLED, Reason.DEPENDENCY),
        ]
        shop.broken.clear()
        await engine.retry(steps[2].task.id)
        record = await run.wait(PATIENCE_SECONDS)
    assert (record.state, record.counts) == (State.SUCCEEDED, {State.SUCCEEDED: 9})


async def test_a_map_that_has_succeeded_is_not_retried(engine: Engine) -> None:
    shop = Shop(engine)
    async with engine.worker():
        run = await shop.flow().enqueue()
        await run.wait(PATIENCE_SECONDS)
        (mapped,) = [handle for handle in run.handles if handle.kind == "render"]
        with pytest.raises(IllegalMove, match="it is a map that has created its items; retry those"):
            await engine.retry(mapped.id)
        assert len(await run.steps()) == 9


async def test_without_run_a_failure_cancels_all_that_follows(engine: Engine) -> None:
    shop = Shop(engine)
    shop.broken = {"fetch us"}
    async with engine.worker():
        flow = engine.flow("import")
        first, second = flow.add(shop.fetch.call("eu")), flow.add(shop.fetch.call("us"))
        both = flow.add(shop.merge.call(first.result, second.result))
        flow.add(shop.publish.call(flow.map(shop.render, over=both).results))
        run = await flow.enqueue()
        with pytest.raises(TaskCancelled):
            await run.result(PATIENCE_SECONDS)
        assert (await run.wait(PATIENCE_SECONDS)).counts == {
            State.SUCCEEDED: 1,
            State.FAILED: 1,
            State.CANCELLED: 3,
        }
        shop.broken.clear()
        assert await run.retry() == 1
        assert (await run.result(PATIENCE_SECONDS))["pages"] == PAGES


@pytest.mark.parametrize("name", ["fetch eu", "merge", "render us 1", "publish"])
async def test_cancel_ends_a_flow_in_whatever_state_it_is(engine: Engine, name: str) -> None:
    shop = Shop(engine)
    shop.held[name] = gate = Gate()
    async with engine.worker():
        run = await shop.flow().enqueue()
        await gate.until_reached()
        assert await run.cancel("enough") > 0
        record = await run.wait(PATIENCE_SECONDS)
        assert record.state is State.CANCELLED
        assert record.open == 0


async def test_cancel_before_anything_runs_ends_all(engine: Engine) -> None:
    shop = Shop(engine)
    async with engine:
        run = await shop.flow().enqueue()
        assert await run.cancel() == 5
        assert (await run.status()).counts == {State.CANCELLED: 5}
        assert [(step.task.reason) for step in await run.steps()] == [Reason.CANCELLED] * 5


# ---------------------------------------------------------------- after


async def test_after_waits_for_handles_and_ids_and_sees_their_states(engine: Engine) -> None:
    @engine.task
    async def part(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number

    @engine.task
    async def total(ctx: Context) -> list[Any]:
        return [(need.kind, str(need.state), need.result) for need in ctx.dependencies]

    async with engine:
        good, bad = await part.enqueue(1), await part.enqueue(-1)
        anyway = await total.with_options(after=[good, bad.id], if_dependency_fails="run").enqueue()
        never = await total.with_options(after=[good, bad]).enqueue()
        (last,) = await total.with_options(after=[never]).enqueue_many([()])
        assert [(await handle.status()).state for handle in (anyway, never, last)] == [State.WAITING] * 3
        explanation = await anyway.explain()
        assert explanation.sentence.startswith(f"waits for task {good.id} (part, ready), task {bad.id} (part, ready)")
        async with engine.worker():
            assert await anyway.result(PATIENCE_SECONDS) == [["part", "succeeded", 1], ["part", "failed", None]]
            with pytest.raises(TaskCancelled):
                await last.result(PATIENCE_SECONDS)
            record = await never.status()
            assert record.reason is Reason.DEPENDENCY
            late = await total.with_options(after=[good]).enqueue()
            assert await late.result(PATIENCE_SECONDS) == [["part", "succeeded", 1]]
            doomed = await total.with_options(after=[bad]).enqueue()
            with pytest.raises(TaskCancelled):
                await doomed.result(PATIENCE_SECONDS)


async def test_the_end_of_a_dependency_is_an_event_of_all_that_it_cancels(engine: Engine) -> None:
    names: list[tuple[str, int, Reason | None]] = []

    @engine.on_event
    def note(event: Any) -> None:
        names.append((event.name, event.task_id, event.reason))

    @engine.task
    async def fail() -> None:
        raise ValueError

    async with engine.worker():
        first = await fail.enqueue()
        second = await fail.with_options(after=[first]).enqueue()
        await until_state(second, State.CANCELLED)
        await until(lambda: ("cancelled", second.id, Reason.DEPENDENCY) in names)


async def test_then_sees_the_results_of_its_group_and_a_group_is_found_by_its_id(engine: Engine) -> None:
    @engine.task
    async def part(number: int) -> int:
        return number * 2

    @engine.task
    async def total(ctx: Context) -> int:
        return sum(need.result for need in ctx.dependencies)

    async with engine.worker():
        group = await engine.group("parts", [part.call(number) for number in range(5)], then=total.call())
        assert group.then is not None
        assert await group.then.result(PATIENCE_SECONDS) == 20
        found = await engine.groups.get(group.id)
        assert [handle.id for handle in found.handles] == [handle.id for handle in group.handles]
        assert found.then is not None
        assert (found.name, found.then.id) == ("parts", group.then.id)
        assert await found.results() == [0, 2, 4, 6, 8]
        with pytest.raises(TaskNotFound, match="there is no flow"):
            await engine.flows.get(group.id)
        with pytest.raises(TaskNotFound, match="there is no group 4711"):
            await engine.groups.get(4711)


async def test_a_chain_runs_in_order(engine: Engine) -> None:
    order: list[int] = []

    @engine.task
    async def step(number: int) -> int:
        order.append(number)
        return number

    async with engine.worker():
        run = await engine.chain([step.call(number) for number in range(5)]).enqueue()
        assert await run.result(PATIENCE_SECONDS) == 4
    assert order == list(range(5))


async def test_results_are_items_of_lists_and_reach_child_functions(engine: Engine) -> None:
    @engine.task
    async def number(value: int) -> int:
        return value

    @engine.task
    def add(values: list[int], more: int = 0) -> int:
        return sum(values) + more

    async with engine.worker():
        flow = engine.flow("sum")
        one, two = flow.add(number.call(1)), flow.add(number.call(2))
        flow.add(add.call([one.result, 10, two.result], more=two.result))
        assert await (await flow.enqueue()).result(PATIENCE_SECONDS) == 15


async def test_flows_are_listed_newest_first_with_cursors(engine: Engine) -> None:
    @engine.task
    async def step() -> None: ...

    async with engine:
        runs = [await engine.chain([step.call()], name=name).enqueue() for name in ("a", "b", "a")]
        await runs[0].cancel()
        page = await engine.flows.list(limit=2)
        assert ([flow.id for flow in page], page.next) == ([runs[2].id, runs[1].id], runs[1].id)
        page = await engine.flows.list(limit=2, before=page.next)
        assert ([flow.id for flow in page], page.next) == ([runs[0].id], None)
        assert [flow.id for flow in await engine.flows.list(name="a")] == [runs[2].id, runs[0].id]
        assert [flow.id for flow in await engine.flows.list(state="cancelled")] == [runs[0].id]
        assert [flow.id for flow in await engine.flows.list(is_open=True)] == [runs[2].id, runs[1].id]
        with pytest.raises(OptionError, match="a flow's state is one of cancelled, failed, succeeded, got 'open'"):
            await engine.flows.list(state="open")
        with pytest.raises(OptionError, match="limit must be a whole number from 1 on, got 0"):
            await engine.flows.list(limit=0)
        for before in ("x", 0, True, 2**63):
            with pytest.raises(OptionError, match=f"before must be an id, a whole number above 0, got {before!r}"):
                await engine.flows.list(before=before)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="name must be text, got 1"):
            await engine.flows.list(name=1)  # type: ignore[arg-type]
        with pytest.raises(TaskNotFound, match="there is no flow 4711"):
            await engine.flows.get(4711)


async def test_a_dependency_with_a_result_that_is_needed_is_not_deleted(engine: Engine) -> None:
    @engine.task
    async def step() -> None: ...

    async with engine.worker():
        first = await step.enqueue()
        await first.result(PATIENCE_SECONDS)
        other = await step.with_options(delay=3600).enqueue()
        after = await step.with_options(after=[first, other]).enqueue()
        with pytest.raises(IllegalMove, match=f"cannot be deleted: task {after.id} depends on it"):
            await engine.delete(first.id)


# ---------------------------------------------------------------- mistakes


async def test_a_step_whose_key_is_held_makes_enqueue_raise_and_nothing_is_stored(engine: Engine) -> None:
    @engine.task(key="{number}")
    async def step(number: int) -> None: ...

    async with engine:
        await step.enqueue(2)
        flow = engine.flow("twice")
        flow.add(step.call(1))
        flow.add(step.call(2))
        with pytest.raises(KeyConflict, match="use another key"):
            await flow.enqueue()
        assert (await engine.counts())[State.READY] == 1
        assert len(await engine.flows.list()) == 0


async def test_a_result_that_does_not_fit_fails_with_what_happened(engine: Engine) -> None:
    @engine.task
    async def anything(value: Any) -> Any:
        if value is None:
            raise ValueError("none")
        return value

    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    async with engine.worker():
        flow = engine.flow("misfit")
        flow.add(double.call(flow.add(anything.call("text")).result))
        with pytest.raises(TaskFailed, match=r"Expected `int`, got `str`"):
            await (await flow.enqueue()).result(PATIENCE_SECONDS)
        flow = engine.flow("none")
        flow.add(double.call(flow.add(anything.call(None)).result), if_dependency_fails="run")
        with pytest.raises(TaskFailed, match=r"\(anything\) failed, so its result is null: let the argument be None"):
            await (await flow.enqueue()).result(PATIENCE_SECONDS)
        flow = engine.flow("no list")
        flow.map(double, over=flow.add(anything.call(7)))
        with pytest.raises(TaskFailed, match=r"a map needs a list, but the result of task .* is int"):
            await (await flow.enqueue()).result(PATIENCE_SECONDS)


async def test_mistakes_are_errors_where_they_are_made(engine: Engine, new_engine: NewEngine) -> None:
    shop = Shop(engine)

    @engine.task(key="{pages}")
    async def keyed(pages: str) -> None: ...

    @engine.task(title="page {pages}")
    async def titled(pages: str) -> None: ...

    @engine.task
    async def text() -> str:
        return ""

    @engine.task
    async def lists() -> list[list[Row]]:
        return []

    flow = engine.flow("mistakes")
    step = flow.add(shop.fetch.call("eu"))
    word = flow.add(text.call())
    nested = engine.flow("nested").add(lists.call())
    for use in (
        lambda: step.result[0],
        lambda: f"{step.result}",
        lambda: step.result.name,  # type: ignore[attr-defined]
        lambda: list(step.result),
        lambda: bool(step.result),
        lambda: step.result + step.result,
        lambda: step.result == [],
        lambda: -step.result,  # type: ignore[operator]
        lambda: abs(step.result),  # type: ignore[arg-type]
        lambda: round(step.result),  # type: ignore[call-overload]
        lambda: step.result @ step.result,  # type: ignore[operator]
        lambda: divmod(step.result, 2),  # type: ignore[operator]
        lambda: 2**step.result,  # type: ignore[operator]
        lambda: next(step.result),  # type: ignore[call-overload]
        lambda: {step.result: 1},
        lambda: text.with_options(meta={"a": step.result}),
    ):
        with pytest.raises(PayloadError, match=r"the result of step 1 \(fetch\) is not known before the flow runs"):
            use()
    with pytest.raises(PayloadError, match="can only be a whole argument or an item of a list"):
        shop.publish.call([{"a": step.result}])
    with pytest.raises(PayloadError, match=r"argument 'region' of step 3 \(fetch\) is str, but .* a list is no text"):
        flow.add(shop.fetch.call(step.result))  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match=r"flow.map needs a list, but the result of step 2 \(text\) is str"):
        flow.map(shop.render, over=word)
    with pytest.raises(PayloadError, match="do not fit the first argument of task 'fetch', which is str"):
        flow.map(shop.fetch, over=step)
    with pytest.raises(
        PayloadError, match=r"'region' of step 3 \(fetch\) is str, but a list .* pass the result itself"
    ):
        flow.add(shop.fetch.call([word.result]))  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="the item as 'first', but the task needs second, too; give these a default"):
        flow.map(shop.merge, over=nested)
    with pytest.raises(OptionError, match="key of task 'keyed' uses 'pages', the result of a step"):
        keyed.call(word.result)
    with pytest.raises(OptionError, match="title of task 'titled' uses 'pages', the result of a step"):
        flow.add(titled.call(word.result))
    with pytest.raises(OptionError, match=r"uses step 1 \(fetch\) of another flow, 'mistakes'"):
        engine.flow("other").add(shop.merge.call(step.result, []))
    with pytest.raises(OptionError, match="is not stored yet; what comes after it must be added to that flow"):
        text.with_options(after=[step]).call().to_new_task()
    with pytest.raises(PayloadError, match=r"add the call to the flow with flow.add\(...\)"):
        shop.merge.call(step.result, []).to_new_task()
    with pytest.raises(OptionError, match=r"flow.add takes a call"):
        flow.add(shop.fetch)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="conn cannot be given for a step"):
        flow.add(text.with_options(conn=object()).call())
    with pytest.raises(OptionError, match="after must be a list of handles, steps or task ids, got 'a'"):
        text.with_options(after="a")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="got True in it"):
        text.with_options(after=[True])
    with pytest.raises(OptionError, match="if_dependency_fails must be one of 'cancel', 'run', got 'skip'"):
        text.with_options(if_dependency_fails="skip")  # type: ignore[arg-type]
    elsewhere: Handle[Any] = Handle(new_engine("memory://other"), 7)
    with pytest.raises(OptionError, match="after names task 7 of memory://other, but the task is stored in"):
        text.with_options(after=[elsewhere]).call().to_new_task()
    with pytest.raises(OptionError, match="could come to wait for itself"):
        text.with_options(after=[7], key="k", on_conflict="replace").call().to_new_task()
    async with engine:
        with pytest.raises(OptionError, match="flow 'nothing' has no steps"):
            await engine.flow("nothing").enqueue()
        with pytest.raises(TaskNotFound, match="names task 4711, which does not exist"):
            await text.with_options(after=[4711]).enqueue()
        await flow.enqueue()
        with pytest.raises(OptionError, match="flow 'mistakes' is enqueued already"):
            await flow.enqueue()
        assert (await engine.counts())[State.READY] == 2


def test_flows_have_twins_without_an_event_loop(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)

    @engine.task
    async def step() -> None: ...

    with engine:
        run = engine.chain([step.call(), step.call()]).enqueue_sync()
        assert run.status_sync().counts == {State.READY: 1, State.WAITING: 1}
        assert len(run.steps_sync()) == 2
        assert engine.flows.get_sync(run.id).cancel_sync() == 2
        assert run.retry_sync() == 2
        assert [flow.id for flow in engine.flows.list_sync()] == [run.id]
