"""Looking without taking: the candidates of a node in order, and how many go before a task."""

from __future__ import annotations

from typing import Any

from tests.stores.actions import HOUR, Worker, add, add_in_state, add_many, amounts, declare_limit, demands, states
from tests.stores.test_capacity import kind_request

from synergon.model.claims import CandidateQuery
from synergon.model.lifecycle import State
from synergon.stores.base import Store


async def look(store: Store, requirements: str = "", **more: Any) -> list[int]:
    return [
        record.id
        for record in await store.read_candidates(
            CandidateQuery(kind_request=kind_request(requirements=requirements), **more)
        )
    ]


async def test_a_look_shows_ready_tasks_in_the_order_in_which_they_would_be_taken(store: Store, worker: Worker) -> None:
    low = await add(store, priority=-1)
    ids = await add_many(store, 2, queue="x")
    high = await add(store, priority=1, requirements=demands(cpu=1))
    middle = await add(store, queue="y", requirements=demands(cpu=2))
    await add(store, kind="other")
    await add(store, delay=HOUR)
    await add_in_state(store, State.CANCELLED)
    expected = [high, *ids, middle, low]
    assert await look(store, totals=amounts(cpu=2)) == expected
    assert await states(store, expected) == [State.READY] * 5
    assert await look(store, totals=amounts(cpu=2), limit=3) == expected[:3]
    records = await store.read_candidates(CandidateQuery(kind_request=kind_request(), totals=amounts(cpu=2)))
    assert records == await store.get(expected)
    claims = await worker.claim_kinds(kind_request(), totals=amounts(cpu=9), free=amounts(cpu=9))
    assert [claim.id for claim in claims] == expected


async def test_a_look_goes_on_behind_the_last_one_seen(store: Store) -> None:
    for number in range(30):
        await add(
            store, priority=number % 3, queue=f"queue-{number % 2}", requirements=("", demands())[number % 5 == 0]
        )
    everything = await store.read_candidates(CandidateQuery(kind_request=kind_request()))
    assert [(-record.priority, record.id) for record in everything] == sorted(
        (-record.priority, record.id) for record in everything
    )
    assert len(everything) == 30
    seen: list[int] = []
    after: tuple[int, int, int] | None = None
    while page := await store.read_candidates(CandidateQuery(kind_request=kind_request(), after=after, limit=7)):
        seen += [record.id for record in page]
        after = (page[-1].priority, 0, page[-1].id)
    assert seen == [record.id for record in everything]


async def test_a_look_leaves_out_what_could_never_run_there(store: Store) -> None:
    await add_many(store, 1100, requirements=demands("elsewhere"), priority=1)
    await add(store, requirements=demands(cpu=9))
    await add(store, requirements=demands(forbids="here"))
    full = await add(store, requirements=demands("here", cpu=8))
    silent = await add(store)
    state: dict[str, Any] = {"labels": frozenset({"here"}), "totals": amounts(cpu=8)}
    assert await look(store, **state) == [full, silent]
    assert await look(store, requirements=demands(cpu=9), **state) == [full]


async def test_a_look_leaves_out_paused_and_unwanted_queues_and_expired_tasks(store: Store) -> None:
    await store.pause(["closed"])
    await add(store, queue="closed")
    await add(store, expires_in=0)
    other = await add(store, queue="other")
    fresh = await add(store, expires_in=HOUR)
    assert await look(store) == [other, fresh]
    assert await look(store, queues=frozenset({"default", "closed"})) == [fresh]


# ---------------------------------------------------------------- how many go before


async def test_ahead_of_a_ready_task_are_the_ready_ones_of_its_kind_that_go_before_it(
    store: Store, worker: Worker
) -> None:
    running = await add(store)
    await worker.claim(limit=1)
    ids = await add_many(store, 3, queue="x")
    high = await add(store, priority=1, requirements=demands(cpu=1))
    low = await add(store, priority=-1)
    await add(store, kind="other", priority=9)
    later = await add(store, delay=HOUR, priority=9)
    assert [await store.ahead(task_id, 1000) for task_id in (high, *ids, low)] == [0, 1, 2, 3, 4]
    assert await store.ahead(low, 2) == 2
    assert await store.ahead(low, 4) == 4
    for task_id in (running, later, 4711):
        assert await store.ahead(task_id, 1000) is None


async def test_ahead_in_a_line_are_those_of_the_line(store: Store) -> None:
    await declare_limit(store, "key:work", 2)
    ids = await add_many(store, 6, limit_key="ada")
    others = await add_many(store, 4, limit_key="bob")
    free = await add(store)
    assert (await states(store, ids))[:3] == [State.READY, State.READY, State.WAITING]
    assert [await store.ahead(task_id, 1000) for task_id in ids] == [0, 1, 0, 1, 2, 3]
    assert [await store.ahead(task_id, 1000) for task_id in others] == [0, 1, 0, 1]
    assert await store.ahead(free, 1000) == 4
    assert await store.ahead(ids[5], 3) == 3


async def test_ahead_of_an_ended_task_is_nobody(store: Store) -> None:
    ended = await add_in_state(store, State.SUCCEEDED)
    assert await store.ahead(ended, 1000) is None
