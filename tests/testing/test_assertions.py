"""What was enqueued: what is asked, and what a failure shows."""

from __future__ import annotations

from unittest import mock

import pytest
from tests.testing.app import Address, engine, greet, parent, send

from synergon import Engine, KindError, OptionError, PayloadError
from synergon.testing import Tester


async def test_arguments_are_given_as_to_the_task(tester: Tester) -> None:
    address = Address("Ada", "a@b.c")
    await send.enqueue(address, copies=2)
    tester.assert_enqueued(send)
    tester.assert_enqueued("send")
    tester.assert_enqueued(send, address)
    tester.assert_enqueued(send, to=address, copies=2)
    tester.assert_enqueued(send, {"name": "Ada", "mail": "a@b.c"})
    tester.assert_enqueued(send, mock.ANY, copies=pytest.approx(2))
    tester.assert_not_enqueued(send, Address("Bob", "a@b.c"))
    tester.assert_not_enqueued(send, copies=3)
    tester.assert_not_enqueued(send, copies=object())


async def test_defaults_count_as_given(tester: Tester) -> None:
    await send.enqueue(Address("Ada", "a@b.c"))
    tester.assert_enqueued(send, subject="welcome", copies=1)
    tester.assert_not_enqueued(send, subject="goodbye")


async def test_it_returns_the_tasks(tester: Tester) -> None:
    await greet.enqueue_many([("Ada",), ("Bob",)])
    assert [record.arguments["name"] for record in tester.assert_enqueued(greet, count=2)] == ["Ada", "Bob"]


async def test_queue_and_count_are_looked_at(tester: Tester) -> None:
    await greet.enqueue("Ada")
    await greet.with_options(queue="slow").enqueue("Ada")
    tester.assert_enqueued(greet, "Ada", count=2)
    tester.assert_enqueued(greet, "Ada", queue="slow", count=1)
    tester.assert_enqueued(greet, "Bob", count=0)
    tester.assert_not_enqueued(greet, "Ada", queue="mail")


async def test_what_has_run_and_children_are_found_too(tester: Tester) -> None:
    await parent.enqueue(1)
    await tester.drain()
    tester.assert_enqueued(parent, 1)
    tester.assert_enqueued(greet, "child 0")
    assert [record.kind for record in tester.enqueued()] == ["parent", "greet"]
    assert [record.kind for record in tester.enqueued("greet")] == ["greet"]
    assert [record.kind for record in tester.enqueued(parent)] == ["parent"]


async def test_a_kind_whose_function_is_elsewhere(tester: Tester) -> None:
    tester.assert_not_enqueued("billing.invoice")
    await engine.enqueue([engine.call("billing.invoice", order=42)])
    tester.assert_enqueued("billing.invoice", order=42)
    with pytest.raises(PayloadError, match="name its arguments"):
        tester.assert_enqueued("billing.invoice", 42)


async def test_a_failure_shows_what_is_enqueued(tester: Tester) -> None:
    await greet.with_options(delay=90).enqueue("Bob")
    await send.enqueue(Address("Ada", "a@b.c"))
    await tester.drain()
    with pytest.raises(AssertionError) as caught:
        tester.assert_enqueued(send, copies=2)
    assert str(caught.value).splitlines() == [
        "send(copies=2) was not enqueued; enqueued were:",
        "     2  send(to={'name': 'Ada', 'mail': 'a@b.c'})  [queue mail, succeeded]",
        "     1  greet(name='Bob')  [queue default, scheduled, due in 90 s]",
    ]


async def test_a_failure_tells_how_often(tester: Tester) -> None:
    await greet.enqueue("Ada")
    with pytest.raises(AssertionError, match=r"greet\(\) in queue 'default' was enqueued once, not 3 times; enq"):
        tester.assert_enqueued(greet, queue="default", count=3)
    with pytest.raises(AssertionError, match=r"greet\(name='Ada'\) was enqueued once; enqueued was:\n"):
        tester.assert_not_enqueued(greet, "Ada")


async def test_a_failure_with_nothing_enqueued_says_that(tester: Tester) -> None:
    with pytest.raises(AssertionError, match="nothing was enqueued"):
        tester.assert_enqueued(greet)


async def test_a_failure_does_not_list_thousands(tester: Tester) -> None:
    await greet.enqueue_many([(str(number),) for number in range(1000)])
    with pytest.raises(AssertionError) as caught:
        tester.assert_not_enqueued(greet)
    assert str(caught.value).splitlines()[-1] == "  ... and 980 more"
    assert len(str(caught.value).splitlines()) == 22


async def test_mistakes_are_refused(tester: Tester) -> None:
    other = Engine("memory://")

    @other.task
    async def elsewhere() -> None: ...

    with pytest.raises(KindError, match="no kind 'gret'; did you mean 'greet'"):
        tester.assert_not_enqueued("gret")
    with pytest.raises(OptionError, match="'elsewhere' belongs to"):
        tester.assert_not_enqueued(elsewhere)
    with pytest.raises(OptionError, match="a task or the name of a kind"):
        tester.assert_enqueued(len)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(PayloadError, match=r"'greet' has no argument 'nmae'; it takes \(name\)"):
        tester.assert_not_enqueued(greet, nmae="Ada")
    with pytest.raises(PayloadError, match="takes 1 arguments, got 2"):
        tester.assert_not_enqueued(greet, "Ada", "Bob")
    with pytest.raises(PayloadError, match="two values for name"):
        tester.assert_not_enqueued(greet, "Ada", name="Bob")
    with pytest.raises(OptionError, match="count must be"):
        tester.assert_enqueued(greet, count=-1)
