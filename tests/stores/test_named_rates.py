"""Rates of limits: tasks of all kinds that name a limit, or run on a server that it covers, start no faster."""

from __future__ import annotations

from itertools import accumulate
from typing import cast

import pytest
from msgspec import UNSET
from tests.stores.actions import ERROR, HOUR, Worker, add, add_many, declare_pool, read

from synergon.model.claims import KindRequest
from synergon.model.limits import LimitRecord, NewLimit, NewRate
from synergon.model.operator_actions import NewAction
from synergon.model.outcomes import HandedBack, Retrying, Succeeded
from synergon.model.record import from_datetime
from synergon.stores.base import Store
from synergon.stores.base_store import BaseStore
from synergon.stores.session import Session

MINUTE = HOUR // 60
SECOND = MINUTE // 60
WORK, MAIL = (KindRequest(kind=kind, count=1000, limits=("api",)) for kind in ("work", "mail"))


async def declare_rate(store: Store, rate: NewRate | None, name: str = "api", value: int | None = None) -> None:
    await store.declare([NewLimit(name=name, value=value, rate=rate)], [])


async def limit(store: Store, name: str = "api") -> LimitRecord:
    (found,) = [one for one in await store.limits() if one.name == name]
    return found


async def let_pass(store: Store, microseconds: int, name: str = "api") -> None:
    """Let time pass for a rate: the moment that the store has for it moves into the past."""

    async def shift(session: Session) -> None:
        (row,) = [row for row in await session.limits.all() if row.name == name]
        if row.next_at is not None:
            await session.limits.set_next_starts({name: row.next_at - microseconds})

    await cast(BaseStore, store)._transact(shift)


async def test_a_burst_starts_at_once_and_the_claim_says_when_the_next_one_may(store: Store, worker: Worker) -> None:
    await declare_rate(store, NewRate(per=HOUR, burst=3))
    ids = await add_many(store, 5)
    claims = await worker.claim_kinds(WORK)
    assert [taken.id for taken in claims] == ids[:3]
    assert 0 < claims.deferred["work"] <= HOUR
    assert list(await worker.claim_kinds(WORK)) == []
    await let_pass(store, HOUR)
    assert [taken.id for taken in await worker.claim_kinds(WORK)] == ids[3:4]


async def test_without_a_ready_task_and_while_the_rate_is_free_nothing_is_deferred(
    store: Store, worker: Worker
) -> None:
    await declare_rate(store, NewRate(per=HOUR, burst=3))
    assert dict((await worker.claim_kinds(WORK)).deferred) == {}
    await add(store)
    assert dict((await worker.claim_kinds(WORK)).deferred) == {}


async def test_kinds_share_a_rate_in_the_order_of_their_tasks(store: Store, worker: Worker) -> None:
    await declare_rate(store, NewRate(per=SECOND, burst=2))
    ids = [await add(store, kind=kind) for kind in ("work", "work", "work", "mail", "work", "mail")]
    other = await add(store, kind="free")
    free = KindRequest(kind="free", count=1000)
    assert {taken.id for taken in await worker.claim_kinds(WORK, MAIL, free)} == {*ids[:2], other}
    for expected in ids[2:]:
        await let_pass(store, SECOND)
        assert [taken.id for taken in await worker.claim_kinds(MAIL, WORK)] == [expected]


async def test_the_value_and_the_rate_of_a_limit_hold_together(store: Store, worker: Worker) -> None:
    await declare_rate(store, NewRate(per=HOUR, burst=3), value=2)
    await add_many(store, 5)
    (first, _) = await worker.claim_kinds(WORK)
    assert list(await worker.claim_kinds(WORK)) == []
    await worker.finish(first, Succeeded())
    (third,) = await worker.claim_kinds(WORK)
    await worker.finish(third, Succeeded())
    assert list(await worker.claim_kinds(WORK)) == []


@pytest.mark.parametrize("name", ["http://gpu/a", "http://gpu"])
async def test_a_start_is_charged_to_the_rates_that_cover_its_server(store: Store, worker: Worker, name: str) -> None:
    room = KindRequest(kind="work", count=1000, provider="gpu")
    await declare_pool(store, **{"http://gpu/a": 9, "http://gpu/b": 9})
    await declare_rate(store, NewRate(per=HOUR, burst=2), name=name)
    await add_many(store, 9)
    claims = await worker.claim_kinds(room)
    servers = [taken.server for taken in claims]
    if name == "http://gpu":
        assert len(servers) == 2
        assert 0 < claims.deferred["work"] <= HOUR
    else:
        assert servers.count(name) == 2
        assert servers.count("http://gpu/b") == 7
        assert dict(claims.deferred) == {}
    assert (await limit(store, name)).free_at is not None


async def test_a_task_for_a_server_whose_rate_is_not_free_waits_and_others_pass_it(
    store: Store, worker: Worker
) -> None:
    room = KindRequest(kind="work", count=1000, provider="gpu")
    await declare_pool(store, **{"http://gpu/a": 9, "http://gpu/b": 9})
    await declare_rate(store, NewRate(per=HOUR), name="http://gpu/a")
    first, second = [await add(store, target="http://gpu/a") for _ in range(2)]
    other = await add(store, target="http://gpu/b")
    assert {taken.id for taken in await worker.claim_kinds(room)} == {first, other}
    assert list(await worker.claim_kinds(room)) == []
    await let_pass(store, HOUR, "http://gpu/a")
    assert [taken.id for taken in await worker.claim_kinds(room)] == [second]


async def test_every_start_counts_those_of_commands_and_of_retries_too(store: Store, worker: Worker) -> None:
    await declare_pool(store, **{"http://gpu/a": 9})
    await declare_rate(store, NewRate(per=HOUR, burst=3), name="http://gpu")
    work = KindRequest(kind="work", count=1000, provider="gpu")
    stop = KindRequest(kind="gpu.stop", count=100, provider="gpu", is_command=True)
    await add(store, kind="gpu.stop", is_command=True, provider="gpu", max_attempts=1)
    again = await add(store)
    command, first = await worker.claim_kinds(work, stop)
    assert command.kind == "gpu.stop"
    await worker.finish(first, Retrying(delay=0, error=ERROR))
    await store.wake(10)
    (second,) = await worker.claim_kinds(work, stop)
    assert second.id == again
    await worker.finish(second, HandedBack())
    assert list(await worker.claim_kinds(work, stop)) == []


async def test_a_heavy_task_starts_when_a_light_one_may_and_delays_what_follows(store: Store, worker: Worker) -> None:
    await declare_rate(store, NewRate(per=MINUTE, starts=60, burst=10))
    heavy = await add(store, units=120)
    light = await add(store)
    before = await store.now()
    (taken,) = await worker.claim_kinds(WORK)
    after = await store.now()
    assert (taken.id, (await read(store, heavy)).units) == (heavy, 120)
    free_at = (await limit(store)).free_at
    assert free_at is not None
    assert before + 111 * SECOND <= from_datetime(free_at) <= after + 111 * SECOND  # 120 units less the burst
    await let_pass(store, 111 * SECOND)
    assert [one.id for one in await worker.claim_kinds(WORK)] == [light]


async def test_a_rate_by_starts_counts_each_task_once_beside_one_by_units(store: Store, worker: Worker) -> None:
    await store.declare(
        [
            NewLimit(name="requests", value=None, rate=NewRate(per=HOUR, burst=3, by_units=False)),
            NewLimit(name="tokens", value=None, rate=NewRate(per=HOUR, starts=1000, burst=500)),
        ],
        [],
    )
    room = KindRequest(kind="work", count=1000, limits=("requests", "tokens"))
    ids = await add_many(store, 5, units=150)
    assert [taken.id for taken in await worker.claim_kinds(room)] == ids[:3]
    await let_pass(store, HOUR, "requests")
    assert [taken.id for taken in await worker.claim_kinds(room)] == ids[3:4]
    await let_pass(store, HOUR, "requests")
    assert list(await worker.claim_kinds(room)) == []  # 600 of 500 tokens are used
    await let_pass(store, HOUR // 8, "tokens")
    assert [taken.id for taken in await worker.claim_kinds(room)] == ids[4:]


async def test_units_remain_with_the_task_in_the_history_and_after_a_retry(store: Store, worker: Worker) -> None:
    await declare_rate(store, NewRate(per=SECOND, starts=1000, burst=50))
    task_id = await add(store, units=50)
    (taken,) = await worker.claim_kinds(WORK)
    await worker.finish(taken, Succeeded())
    assert (await read(store, task_id)).units == 50
    await store.retry([task_id])
    assert (await read(store, task_id)).units == 50


async def test_a_rate_that_is_changed_holds_at_once(store: Store, worker: Worker) -> None:
    await declare_rate(store, NewRate(per=24 * HOUR))
    await add_many(store, 4)
    assert len(await worker.claim_kinds(WORK)) == 1
    assert await store.set_limit("api", UNSET, NewRate(per=SECOND, burst=2))
    free_at = (await limit(store)).free_at
    assert free_at is not None
    assert from_datetime(free_at) <= await store.now() + SECOND
    assert list(await worker.claim_kinds(WORK)) == []  # no new burst because of the change
    await let_pass(store, SECOND)
    assert len(await worker.claim_kinds(WORK)) == 1
    assert await store.set_limit("api", UNSET, None)
    assert len(await worker.claim_kinds(WORK)) == 2
    assert (await limit(store)).rate is None
    assert not await store.set_limit("nothing", UNSET, None)


async def test_a_rate_that_a_limit_gets_later_covers_servers_at_once(store: Store, worker: Worker) -> None:
    room = KindRequest(kind="work", count=1000, provider="gpu")
    await declare_pool(store, **{"http://gpu/a": 9})
    await declare_rate(store, None, name="http://gpu")
    ids = await add_many(store, 6)
    assert len(await worker.claim_kinds(room, limit=1)) == 1
    await store.set_limit("http://gpu", UNSET, NewRate(per=HOUR, burst=2))
    assert [taken.id for taken in await worker.claim_kinds(room)] == ids[1:3]


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ({"rate": {"per": MINUTE, "starts": 600, "burst": 5}}, "the rate of api is 600 per minute, 5 at once now"),
        (
            {"value": 3, "rate": None},
            "limit api is 3 now, was unlimited, the rate of api is unlimited now, was 1 per hour",
        ),
        ({"rate": {"per": "x"}}, "rejected: a change of a limit has a value or a rate"),
    ],
)
async def test_a_change_is_recorded_in_the_audit(store: Store, value: object, outcome: str) -> None:
    await declare_rate(store, NewRate(per=HOUR))
    action = await store.act(NewAction(verb="set_limit", subject="api", value=value, who="ada"))
    assert (action.outcome or "").startswith(outcome)


async def test_a_new_declaration_of_the_rate_remembers_what_has_started(store: Store, worker: Worker) -> None:
    await declare_rate(store, NewRate(per=HOUR))
    await add_many(store, 3)
    assert len(await worker.claim_kinds(WORK)) == 1
    await declare_rate(store, NewRate(per=HOUR), value=5)
    assert list(await worker.claim_kinds(WORK)) == []


async def test_in_no_window_of_an_hour_more_starts_than_burst_and_rate_allow(store: Store, worker: Worker) -> None:
    """Two nodes that claim at odd moments; each start counts one unit."""
    rate = NewRate(per=MINUTE, starts=7, burst=5)
    await declare_rate(store, rate)
    other = await Worker.start(store, "node-2")
    await add_many(store, 300)
    await add_many(store, 300, kind="mail")
    started: list[tuple[int, int]] = []
    """The moment of each claim, and the number of its starts."""
    now = 0
    pauses = [round(3.7 * SECOND), 29 * SECOND, SECOND // 7, 61 * SECOND, 0, 8 * SECOND]
    while now < HOUR:
        for node, room in ((worker, WORK), (other, MAIL)):
            pause = pauses[len(started) % len(pauses)]
            await let_pass(store, pause)
            now += pause
            started.append((now, len(await node.claim_kinds(room))))
    sums = list(accumulate((count for _, count in started), initial=0))
    slack = 2  # the store's own clock goes on, too
    for first in range(len(started)):
        for last in range(first, len(started)):
            span = started[last][0] - started[first][0]
            assert sums[last + 1] - sums[first] <= rate.burst + slack + span * rate.starts // rate.per
    assert sums[-1] >= HOUR * rate.starts // rate.per * 3 // 4
    by_kind = [sum(count for _, count in started[number::2]) for number in (0, 1)]
    assert min(by_kind) > max(by_kind) // 8
