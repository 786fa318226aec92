"""The option `title`: a template over the arguments, which becomes the title of each task."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, until

from synergon import Context, Engine, Event, OptionError, PayloadError


@dataclass
class Customer:
    name: str


async def test_a_title_is_made_of_the_arguments(engine: Engine) -> None:
    @engine.task(title="Invoice {number} for {customer.name}, {copies}x")
    async def send(number: int, customer: Customer, copies: int = 1) -> None: ...

    async with engine:
        handles = [
            await send.enqueue(7, Customer("Ada")),
            await send.enqueue(number=8, customer=Customer("Bob"), copies=2),
        ]
        handles += await send.enqueue_many([(9, Customer("Eve"))])
        titles = [(await handle.status()).title for handle in handles]
        assert titles == ["Invoice 7 for Ada, 1x", "Invoice 8 for Bob, 2x", "Invoice 9 for Eve, 1x"]
        assert [task.id for task in await engine.tasks(title="for ada")] == [handles[0].id]


async def test_a_call_may_have_a_title_of_its_own(engine: Engine) -> None:
    @engine.task(title="Invoice {number}")
    async def send(number: int) -> None: ...

    async with engine:
        handles = [
            await send.with_options(title="Reminder of {number:04}").enqueue(7),
            await send.with_options(priority=1).enqueue(7),
            *await engine.enqueue(
                [
                    send.call(7).with_options(title="Nothing but words"),
                    engine.call("elsewhere", number=7).with_options(title="Far {number}"),
                ]
            ),
        ]
        titles = [(await handle.status()).title for handle in handles]
    assert titles == ["Reminder of 0007", "Invoice 7", "Nothing but words", "Far 7"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
        ("two\nlines\tand \x00 a nul", "two lines and a nul"),
        (" \n ", None),
    ],
)
async def test_a_title_is_one_line_of_at_most_200_characters(engine: Engine, text: str, title: str | None) -> None:
    @engine.task(title="{text}")
    async def say(text: str) -> None: ...

    async with engine:
        handle = await say.enqueue(text)
        assert (await handle.status()).title == title


def test_a_template_that_names_no_argument_of_the_task_is_rejected_where_it_is_written(engine: Engine) -> None:
    with pytest.raises(OptionError, match=r"title of task 'send' asks for 'nummer', .* it takes \(number\)"):

        @engine.task(title="Invoice {nummer}")
        async def send(ctx: Context, number: int) -> None: ...

    with pytest.raises(OptionError, match=r"title of task 'hold' asks for 'ctx', .* it takes \(number\)"):

        @engine.task(title="Invoice {ctx}")
        async def hold(ctx: Context, number: int) -> None: ...

    with pytest.raises(OptionError, match=r"title is no template: .*; write it like"):

        @engine.task(title="Invoice {number")
        async def count(number: int) -> None: ...

    @engine.task
    async def greet(name: str) -> None: ...

    with pytest.raises(OptionError, match="title of task 'greet' asks for 'nam'"):
        greet.with_options(title="{nam}")
    with pytest.raises(OptionError, match="title of task 'greet' asks for 'nam'"):
        greet.call("Ada").with_options(title="{nam}")


async def test_an_argument_that_does_not_have_what_the_template_asks_for_is_rejected(engine: Engine) -> None:
    @engine.task(title="{data[customer]}")
    async def send(data: dict[str, str]) -> None: ...

    async with engine:
        with pytest.raises(PayloadError, match="title of task 'send' raised KeyError"):
            await send.enqueue({})
        with pytest.raises(PayloadError, match="title of task 'elsewhere' raised KeyError"):
            await engine.enqueue([engine.call("elsewhere", number=1).with_options(title="{nummer}")])
        assert len(await engine.tasks()) == 0


async def test_events_have_the_title(engine: Engine) -> None:
    heard: list[Event] = []
    engine.on_event(heard.append)

    @engine.task(title="Invoice {number}")
    async def send(number: int) -> None: ...

    async with engine, engine.worker():
        await (await send.enqueue(7)).result(PATIENCE_SECONDS)
        await until(lambda: len(heard) == 2)
        async for event in engine.events():
            assert (event.name, event.title) == ("succeeded", "Invoice 7")
            break
    assert [(event.name, event.title) for event in heard] == [("started", "Invoice 7"), ("succeeded", "Invoice 7")]


async def test_children_have_titles(engine: Engine) -> None:
    @engine.task(title="Page {number}")
    async def page(number: int) -> None: ...

    @engine.task
    async def book(ctx: Context) -> None:
        ctx.enqueue(page.call(3))

    async with engine, engine.worker():
        await (await book.enqueue()).result(PATIENCE_SECONDS)
        (child,) = await engine.tasks(title="page")
    assert child.title == "Page 3"
