"""Claims of one kind, by a shorter statement, and of several kinds: nothing else is different."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import SCHEMA, store_url
from tests.stores.actions import Worker, add_many, amounts, demands
from tests.stores.test_capacity import ids_of, kind_request
from tests.stores.test_postgres_round_trips import WEIGHED, said, written_down

from synergon.errors import LeaseLost
from synergon.model.claims import Claims
from synergon.model.operator_actions import NewAction
from synergon.stores.postgres import PostgresStore

__all__ = ["said"]

MANY: Final = 50
STATE: Final[dict[str, Any]] = {"totals": amounts(cpu=1), "free": amounts(cpu=1)}


@pytest.fixture
async def store(said: list[str]) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(store_url())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def worker(store: PostgresStore) -> Worker:
    return await Worker.start(store)


class Flow:
    """Somebody who takes many at a time."""

    def __init__(self, worker: Worker, said: list[str]) -> None:
        self._worker = worker
        self._said = said

    async def claim(self, *kinds: str, limit: int = MANY, **more: Any) -> tuple[Claims, list[str]]:
        """What it gets, and what was asked."""
        await written_down()
        self._said.clear()
        claims = await self._worker.claim_kinds(*map(kind_request, kinds or ("work",)), limit=limit, **STATE, **more)
        await written_down()
        return claims, list(self._said)


@pytest.fixture
async def flow(store: PostgresStore, worker: Worker, said: list[str]) -> Flow:
    """It has taken as many as it asked for, and there is more."""
    await add_many(store, MANY, priority=9)
    flow = Flow(worker, said)
    claims, asked = await flow.claim("work", "other")
    assert (len(claims), asked) == (MANY, ["claim"])
    return flow


def statements(kinds: tuple[str, ...]) -> list[str]:
    """The statements that serve these, if nothing is claimed."""
    return ["claim_kind", "claim"] if len(kinds) == 1 else ["claim"]


async def test_all_are_taken_in_their_order_until_nothing_is_left(store: PostgresStore, flow: Flow) -> None:
    late = await add_many(store, 10, priority=-1)
    some, others = await add_many(store, MANY), await add_many(store, MANY, kind="other", queue="mail")
    first = await add_many(store, 5, kind="other", priority=1)
    in_order = [*first, *some, *others, *late]
    taken: list[int] = []
    for _ in range(2):
        claims, asked = await flow.claim("work", "other")
        assert (len(claims), asked) == (MANY, ["claim"])
        assert {(claim.claim_no, claim.attempts) for claim in claims} == {(1, 1)}
        taken += ids_of(claims)
    claims, asked = await flow.claim("work", "other")
    assert (taken + ids_of(claims), asked) == (in_order, ["claim"])
    assert await flow.claim("work", "other") == ([], ["claim"])


async def test_one_kind_is_asked_for_shortly_however_few_there_are(
    store: PostgresStore, worker: Worker, said: list[str]
) -> None:
    flow = Flow(worker, said)
    assert await flow.claim(limit=3) == ([], ["claim_kind", "claim"])
    late, (first, second, third) = await add_many(store, 2, queue="mail"), await add_many(store, 3, priority=1)
    claims, asked = await flow.claim(limit=1)
    assert (ids_of(claims), asked) == ([first], ["claim_kind"])
    assert {(claim.claim_no, claim.attempts, claim.protected_for) for claim in claims} == {(1, 1, 0)}
    claims = await worker.claim_kinds(type(kind_request())(kind="work", count=2), limit=9, **STATE)
    assert ids_of(claims) == [second, third]
    claims, asked = await flow.claim(limit=9)
    assert (ids_of(claims), asked) == (late, ["claim_kind"])


KINDS: Final = (("work",), ("work", "other"))


@pytest.mark.parametrize("kinds", KINDS)
async def test_what_is_paused_has_expired_or_is_of_another_queue_is_left(
    store: PostgresStore, flow: Flow, kinds: tuple[str, ...]
) -> None:
    ids = await add_many(store, 3)
    await add_many(store, 3, queue="mail")
    await add_many(store, 3, queue="other")
    await add_many(store, 3, expires_in=0)
    await store.pause(["mail"])
    claims, asked = await flow.claim(*kinds, queues=frozenset({"default", "mail"}))
    assert (ids_of(claims), asked) == (ids, statements(kinds)[:1])


@pytest.mark.parametrize("kinds", KINDS)
async def test_a_task_that_demands_something_is_weighed(
    store: PostgresStore, flow: Flow, kinds: tuple[str, ...]
) -> None:
    plain = await add_many(store, 3)
    (first,) = await add_many(store, 1, requirements=demands(cpu=1), priority=1)
    claims, asked = await flow.claim(*kinds)
    assert (ids_of(claims), asked) == ([first, *plain], [*statements(kinds), "ready_groups", *WEIGHED])


@pytest.mark.parametrize("kinds", KINDS)
async def test_a_node_that_is_cordoned_meanwhile_gets_nothing_and_learns_why(
    store: PostgresStore, worker: Worker, flow: Flow, kinds: tuple[str, ...]
) -> None:
    await add_many(store, 3)
    await store.act(NewAction(verb="cordon", subject=worker.node_id, who="ada"))
    claims, asked = await flow.claim(*kinds)
    assert (ids_of(claims), claims.is_cordoned, asked) == ([], True, statements(kinds))


@pytest.mark.parametrize("kinds", KINDS)
async def test_a_node_whose_lease_is_over_gets_nothing_and_learns_why(
    store: PostgresStore, worker: Worker, flow: Flow, kinds: tuple[str, ...]
) -> None:
    await add_many(store, 3)
    await store.unregister(worker.node_id)
    with pytest.raises(LeaseLost):
        await flow.claim(*kinds)


@pytest.mark.parametrize("kinds", KINDS)
async def test_what_somebody_else_is_about_to_take_is_passed_over(
    store: PostgresStore, flow: Flow, kinds: tuple[str, ...]
) -> None:
    ids = await add_many(store, 4)
    other: asyncpg.Connection[Any] = await asyncpg.connect(store.address.hosts.dsns[0])
    async with other.transaction():
        await other.execute(f"SELECT FROM {SCHEMA}.task WHERE id = ANY ($1) FOR UPDATE", ids[:2])
        claims, _ = await flow.claim(*kinds)
    await other.close()
    assert ids_of(claims) == ids[2:]
