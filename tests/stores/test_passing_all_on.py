"""Many tasks of a kind's lines end, and those who have their places from now on start in the same step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import pytest
from msgspec.structs import replace
from tests.postgres_server import SCHEMA, administer, server_url
from tests.stores.actions import HOUR, Worker, add, add_many, declare_limit, demands, settlement_of, states
from tests.stores.relay import LINED
from tests.stores.test_cordon import order
from tests.support import until

from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit, NewRate
from synergon.model.outcomes import FencedOutcome, Succeeded, Verdict
from synergon.model.tasks import NewTask
from synergon.stores.base import Store
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.finish_keyed import _close_up

LINES: Final = ("a", "b", "c")
WANTED: Final = replace(LINED, count=100)


class Crowd:
    """Three lines, two of each run on this node."""

    def __init__(self, store: Store, worker: Worker, claims: Claims, ids: list[int]) -> None:
        self.store = store
        self.worker = worker
        self.claims = claims
        self.waiting = ids[len(claims) :]

    @classmethod
    async def begin(cls, store: Store, number: int = 4) -> Crowd:
        await declare_limit(store, "key:lined", 2)
        tasks = [NewTask(kind="lined", limit_key=line) for _ in range(number) for line in LINES]
        ids = [insertion.id for insertion in await store.insert(tasks)]
        worker = await Worker.start(store)
        return cls(store, worker, await worker.claim_rooms(WANTED), ids)

    def settlements(self, claims: list[Claim] | None = None) -> list[FencedOutcome]:
        return [settlement_of(claim, Succeeded()) for claim in (self.claims if claims is None else claims)]

    async def pass_on(
        self, claims: list[Claim] | None = None, *rooms: KindRequest, **more: Any
    ) -> tuple[list[Verdict], Claims] | None:
        fields = {"node_id": self.worker.node_id, "rooms": rooms or (WANTED,), "limit": 100, **more}
        return await self.store.pass_all_on(self.settlements(claims), ClaimRequest(**fields))

    async def passed(self, claims: list[Claim] | None = None, **more: Any) -> tuple[list[int], int]:
        """Who was taken, and how many have a place that were not; all have succeeded, some of them by a closer look."""
        passed = await self.pass_on(claims, **more)
        assert passed is not None
        verdicts, taken = passed
        ended = {verdict.id for verdict in verdicts}
        verdicts += await self.store.finish([one for one in self.settlements(claims) if one.id not in ended])
        assert {verdict.state for verdict in verdicts} == {State.SUCCEEDED}
        return [claim.id for claim in taken], sum(len(verdict.released) for verdict in verdicts)


async def test_the_next_of_each_line_start_in_the_same_step(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    assert len(crowd.claims) == 6
    assert await crowd.passed() == (crowd.waiting, 0)
    assert await states(passing, crowd.waiting) == [State.RUNNING] * 6
    first = await passing.get(crowd.waiting[:1])
    assert [(one.claim_no, one.attempts, one.node_id) for one in first if one] == [(1, 1, crowd.worker.node_id)]


async def test_stores_that_do_not_pass_on_leave_it_to_finish_and_claim(store: Store) -> None:
    crowd = await Crowd.begin(store)
    passed = await crowd.pass_on()
    assert (passed is not None) == store.capabilities.passes_on
    if passed is None:
        assert await states(store, [claim.id for claim in crowd.claims]) == [State.RUNNING] * 6


async def test_whoever_is_ready_and_has_a_better_place_in_the_order_goes_first(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    later = await add(passing, kind="lined", limit_key="d")
    urgent = await add(passing, kind="lined", limit_key="e", priority=1)
    first, *others = crowd.waiting
    assert await crowd.passed(limit=2) == ([urgent, first], 5)
    assert await states(passing, [*others, later]) == [State.READY] * 6


@pytest.mark.parametrize(
    "what", ["requirements", "ready requirements", "another queue", "expired", "no lease", "cordoned"]
)
async def test_where_something_has_to_be_weighed_those_who_follow_are_ready(passing: Store, what: str) -> None:
    crowd = await Crowd.begin(passing, number=2)
    fields: dict[str, dict[str, Any]] = {
        "requirements": {"requirements": demands(cpu=1)},
        "another queue": {"queue": "another"},
        "expired": {"expires_in": 1},
    }
    if what == "ready requirements":
        await add(passing, kind="lined", limit_key="d", requirements=demands(cpu=1))
    follower = await add(passing, kind="lined", limit_key="a", **fields.get(what, {}))
    if what == "no lease":
        await passing.unregister(crowd.worker.node_id)
    if what == "cordoned":
        await order(passing, "cordon")
    assert await crowd.passed(queues=frozenset({"default"})) == ([], 1)
    assert await states(passing, [follower]) == [State.READY]


async def test_who_is_in_a_paused_queue_is_passed_over(passing: Store) -> None:
    crowd = await Crowd.begin(passing, number=2)
    paused = await add(passing, kind="lined", limit_key="a", queue="closed")
    behind = await add(passing, kind="lined", limit_key="a")
    await passing.pause(["closed"])
    assert await crowd.passed() == ([behind], 0)
    assert await states(passing, [paused]) == [State.WAITING]
    await passing.resume(["closed"])
    assert await states(passing, [paused]) == [State.READY]


async def test_a_lowered_limit_is_not_exceeded_and_a_raised_one_is_used(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    of_a = [claim for claim in crowd.claims if claim.limit_key == "a"]
    of_b = [claim for claim in crowd.claims if claim.limit_key == "b"]
    await passing.set_limit("key:lined", 1)
    assert (await crowd.passed(of_a[:1]))[0] == [], "there is one too many yet"
    assert (await crowd.passed(of_a[1:]))[0] == crowd.waiting[:1]
    await passing.set_limit("key:lined", 3)
    taken, _ = await crowd.passed(of_b)
    assert taken == crowd.waiting[1:5], "one of each line had room, and one follows in its own"


async def test_the_last_of_a_line_waits_for_a_lowered_limit_too(passing: Store) -> None:
    crowd = await Crowd.begin(passing, number=3)
    of_a = [claim for claim in crowd.claims if claim.limit_key == "a"]
    await passing.set_limit("key:lined", 1)
    assert (await crowd.passed(of_a[:1]))[0] == []
    assert await states(passing, crowd.waiting[:1]) == [State.WAITING]
    assert await crowd.passed(of_a[1:]) == (crowd.waiting[:1], 0)


async def test_lines_with_a_rate_are_put_in_order(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    rate = NewRate(every=HOUR, burst=1)
    await passing.declare([NewLimit(name="key:lined", value=2, rate=rate)], [])
    taken, _ = await crowd.passed()
    assert taken == []


async def test_it_is_not_for_other_places_or_several_kinds(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    await declare_limit(passing, "key:other", 2)
    other = KindRequest(kind="other", count=5)
    await add_many(passing, 2, kind="other", limit_key="a")
    claims = [*crowd.claims, *await crowd.worker.claim_rooms(other)]
    assert await crowd.pass_on(claims) is None
    assert await crowd.pass_on(None, WANTED, other) is None
    assert await crowd.pass_on(None, replace(WANTED, limits=("license",))) is None
    assert await states(passing, [claim.id for claim in claims]) == [State.RUNNING] * 8


async def test_what_was_to_be_cancelled_and_what_is_stale_is_left_to_a_closer_look(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    cancelled, stale, *_ = crowd.claims
    await passing.cancel([cancelled.id])
    crowd.claims[1] = replace(stale, claim_no=7)
    passed = await crowd.pass_on()
    assert passed is not None
    assert [verdict.id for verdict in passed[0]] == [claim.id for claim in crowd.claims[2:]]
    again = await passing.finish(crowd.settlements())
    assert [verdict.state for verdict in again] == [State.CANCELLED, None, *[State.SUCCEEDED] * 4], "it may be lost"


# ---------------------------------------------------------------- beside others


@asynccontextmanager
async def holding(statement: str) -> AsyncIterator[None]:
    """Somebody else's transaction has locked these rows."""
    connection = await asyncpg.connect(server_url())
    try:
        async with connection.transaction():
            assert await connection.fetch(statement.format(schema=SCHEMA))
            yield
    finally:
        await connection.close()


async def test_nobody_waits_for_another_who_ends_tasks_of_the_same_lines(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    async with (
        holding("SELECT 1 FROM {schema}.turn WHERE name LIKE 'key:lined/%' AND name < 'key:lined/7' FOR UPDATE"),
        holding(
            "SELECT 1 FROM {schema}.task WHERE state = 'waiting' AND limit_key = 'b' ORDER BY id LIMIT 1 FOR UPDATE"
        ),
    ):
        taken, _ = await crowd.passed([claim for claim in crowd.claims if claim.limit_key == "b"][:1])
    assert taken == [crowd.waiting[4]], "the one before it follows somebody else"
    await passing.set_limit("key:lined", 3)  # which nobody was: the line is put in order again


async def test_while_lines_are_put_in_order_a_node_may_claim_and_who_finishes_waits(passing: Store) -> None:
    crowd = await Crowd.begin(passing)
    async with holding("SELECT 1 FROM {schema}.turn WHERE name LIKE 'key:%' FOR UPDATE"):
        assert await crowd.pass_on() is None
        finishing = asyncio.create_task(passing.finish(crowd.settlements()))
        done, _ = await asyncio.wait([finishing], timeout=0.1)
        assert not done
    assert {verdict.state for verdict in await finishing} == {State.SUCCEEDED}
    assert await states(passing, crowd.waiting) == [State.READY] * 6


async def test_two_who_want_the_same_last_one_leave_nobody_behind(passing: Store) -> None:
    crowd = await Crowd.begin(passing, number=2)
    last = await add(passing, kind="lined", limit_key="a")
    both = [claim for claim in crowd.claims if claim.limit_key == "a"]
    async with holding("SELECT 1 FROM {schema}.task WHERE state = 'waiting' FOR UPDATE"):
        finishing = asyncio.create_task(passing.finish(crowd.settlements(both[:1])))
        done, _ = await asyncio.wait([finishing], timeout=0.1)
        assert not done, "somebody has it in hand, and may yet let go of it"
    assert [verdict.state for verdict in await finishing] == [State.SUCCEEDED]
    assert await states(passing, [last]) == [State.READY]


async def test_who_joins_a_line_waits_until_those_who_close_up_are_through(passing: PostgresStore) -> None:
    """Else it would find the place taken that is just being left, and wait for ever."""
    crowd = await Crowd.begin(passing, number=2)
    leaving = [claim for claim in crowd.claims if claim.limit_key == "a"]
    async with passing._connections.transaction() as connection:
        closed_up = await _close_up(passing._session(connection), crowd.settlements(leaving))
        assert closed_up.ended == {claim.id for claim in leaving}
        joining = asyncio.create_task(add(passing, kind="lined", limit_key="a"))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: joining.done() or bool(administer(waiting)))
    assert await states(passing, [await joining]) == [State.READY]


async def test_batches_of_several_kinds_wait_for_each_other_in_order(passing: Store) -> None:
    """Two kinds, one with an open door and one without: who held the first while it waits for the other would be in
    the way of whoever closes the first."""
    crowd = await Crowd.begin(passing)
    await declare_limit(passing, "key:other", 2)
    await add_many(passing, 2, kind="other", limit_key="a")
    claims = [*crowd.claims, *await crowd.worker.claim_rooms(KindRequest(kind="other", count=5))]
    async with holding("SELECT 1 FROM {schema}.turn WHERE name LIKE 'key:lined%' FOR UPDATE"):
        finishing = asyncio.create_task(passing.finish(crowd.settlements(claims)))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: bool(administer(waiting)))
        async with holding("SELECT 1 FROM {schema}.turn WHERE name LIKE 'key:other%' FOR UPDATE NOWAIT"):
            pass  # nobody holds its doors
    assert {verdict.state for verdict in await finishing} == {State.SUCCEEDED}
