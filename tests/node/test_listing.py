"""What users write to find tasks: filters, order and pages; and what is rejected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from synergon import Engine, OptionError


@pytest.fixture
def kinds(engine: Engine) -> Engine:
    """An engine with two kinds."""

    @engine.task
    async def bill(customer: str) -> None: ...

    @engine.task
    async def remind(customer: str) -> None: ...

    return engine


async def test_tasks_are_found_by_kinds_metadata_time_and_text(kinds: Engine) -> None:
    engine = kinds
    async with engine:
        before = datetime.now(UTC) - timedelta(minutes=1)
        (ada,) = await engine.enqueue([engine.call("bill", customer="Ada").with_options(meta={"id": 42})])
        (bob,) = await engine.enqueue([engine.call("remind", customer="Bob").with_options(meta={"id": 7}, delay="2h")])
        (eve,) = await engine.enqueue([engine.call("remind", customer="Eve").with_options(delay="1h")])
        await engine.cancel(ada.id)

        async def found(**filters: Any) -> list[int]:
            return [task.id for task in await engine.tasks(**filters)]

        assert await found(kind=["bill", "remind"], ascending=True) == [ada.id, bob.id, eve.id]
        assert await found(kind="bill") == [ada.id]
        assert await found(meta={"id": 42}) == [ada.id]
        assert await found(search="bob") == [bob.id]
        assert await found(sort="due", ascending=True) == [eve.id, bob.id]
        assert await found(sort="end") == [ada.id]
        assert await found(finished_since=before) == [ada.id]
        assert await found(enqueued_until=before) == []
        assert len(await found(enqueued_since=before)) == 3
        page = await engine.tasks(sort="due", limit=1)
        assert [task.id for task in await engine.tasks(sort="due", after=page.next)] == [eve.id]


async def test_operations_on_many_tasks_take_these_filters_and_are_recorded_with_them(kinds: Engine) -> None:
    engine = kinds
    async with engine:
        for number in range(5):
            call = engine.call("bill", customer=f"customer {number}")
            await engine.enqueue([call.with_options(meta={"batch": number % 2})])
        assert await engine.cancel_all(kind=["bill", "remind"], meta={"batch": 1}) == 2
        assert await engine.cancel_all(search="customer 4") == 1
        assert await engine.cancel_all(enqueued_until=datetime(2020, 1, 1, tzinfo=UTC)) == 0
        group = await engine.group("billing", [engine.call("bill", customer="Eve")])
        assert await engine.cancel_all(flow=group.id, node=["a", "b"], parent=1) == 0
        assert await engine.cancel_all(flow=group.id) == 1
        flow, narrow, third, second, first = await engine.audit()
        live = "state=ready,running,scheduled,waiting"
        assert flow.subject == f"{live} flow={group.id}"
        assert narrow.subject == f"{live} flow={group.id} parent=1 node=a,b"
        assert first.subject == f"{live} kind=bill,remind meta.batch=1"
        assert second.subject == f"{live} search=customer 4"
        assert third.subject == f"{live} enqueued_until=2020-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"kind": []}, "kind must be the name of a kind or a list of names, got an empty list"),
        ({"kind": ["a", 5]}, "kind must be text, got 5"),
        ({"meta": {}}, "meta must be a dict like"),
        ({"meta": {"a": [1]}}, r"meta is compared with texts, numbers, True, False and None; 'a' is \[1\]"),
        ({"meta": {"a": float("nan")}}, "'a' is nan"),
        ({"meta": {"a": "\0"}}, "that a database can hold"),
        ({"search": ""}, "search must be text that is not empty"),
        ({"search": 5}, "search must be text, got 5"),
        ({"flow": "7"}, "flow must be an id, a whole number above 0, got '7'"),
        ({"parent": 0}, "parent must be an id, a whole number above 0, got 0"),
        ({"node": []}, "node must be the id of a node or a list of ids, got an empty list"),
        ({"enqueued_since": "yesterday"}, "enqueued_since must be a datetime"),
        ({"finished_until": datetime(2026, 1, 1)}, "finished_until must have a time zone"),  # noqa: DTZ001
        ({"sort": "title"}, "sort must be one of 'id', 'due', 'end', got 'title'"),
        ({"sort": "due", "state": "failed"}, 'sort="due" lists tasks that are scheduled, and not failed'),
        ({"sort": "end", "state": ["ready", "failed"]}, "and not ready; leave state out"),
        ({"ascending": 1}, "ascending must be True or False, got 1"),
        ({"after": 5}, 'after must be the `next` of a page with sort="id", got 5'),
        ({"after": "5.6"}, 'after must be the `next` of a page with sort="id"'),
        ({"after": "5", "sort": "end"}, 'after must be the `next` of a page with sort="end"'),
        ({"limit": 0}, "limit must be a whole number from 1 to 10000"),
        ({"before": 5}, "tasks\\(\\) has no option 'before'"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_an_error(kinds: Engine, filters: dict[str, Any], words: str) -> None:
    async with kinds:
        with pytest.raises(OptionError, match=words):
            await kinds.tasks(**filters)
