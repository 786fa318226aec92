"""How often the database is asked between the end of one task and the beginning of the next."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import SCHEMA, store_url
from tests.stores.actions import Worker, add, add_many, amounts, declare_limit, declare_pool, demands, settlement_of
from tests.stores.test_capacity import ids_of, kind_request

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.dependencies import Need
from synergon.model.groups import NewGroup
from synergon.model.outcomes import Succeeded
from synergon.model.schedules import NewSchedule
from synergon.model.tasks import NewTask
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.profile import STANDARD

WEIGHED: Final = ("BEGIN", "first_ready", "take", "COMMIT")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What any connection of asyncpg says from now on: the names of our statements, and the bounds of transactions.
    What the driver asks for itself, once per connection, is left out."""
    names: list[str] = []
    known = {text: name for name, text in STANDARD.statements(SCHEMA).items()} | {
        "BEGIN ISOLATION LEVEL READ COMMITTED;": "BEGIN",
        "COMMIT;": "COMMIT",
    }
    real = asyncpg.Connection.__init__

    def init(self: asyncpg.Connection[Any], *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self.add_query_logger(lambda record: names.append(known[record.query]) if record.query in known else None)

    monkeypatch.setattr(asyncpg.Connection, "__init__", init)
    return names


async def written_down() -> None:
    """The driver notes what it has said one turn of the loop later."""
    await asyncio.sleep(0)


async def test_what_needs_no_weighing_is_claimed_in_one_statement_and_nothing_is_asked_in_vain(said: list[str]) -> None:
    store = PostgresStore(store_url())
    await store.open()
    worker = await Worker.start(store)
    plain = await add_many(store, 3)
    state: dict[str, Any] = {"totals": amounts(cpu=1), "free": amounts(cpu=1)}

    async def claim(limit: int = 1) -> tuple[list[int], list[str]]:
        await written_down()
        said.clear()
        claims = await worker.claim_kinds(kind_request(), limit=limit, **state)
        await written_down()
        return ids_of(claims), list(said)

    assert await claim() == (plain[:1], ["claim_kind"])
    first, second = await add_many(store, 2, requirements=demands(cpu=1), priority=1)
    assert await claim() == ([first], ["claim_kind", "claim", "ready_groups", *WEIGHED])
    assert await claim() == ([second], ["ready_groups", *WEIGHED])
    assert await claim(9) == (plain[1:], ["ready_groups", "claim_kind"])
    await store.close()


ROOMS: Final = {
    "nothing": KindRequest(kind="free", count=1),
    "a limit": KindRequest(kind="licensed", count=1, limits=("license",)),
    "a server": KindRequest(kind="served", count=1, provider="gpu"),
    "a key queue": KindRequest(kind="keyed", count=1),
    "a key queue and a server": KindRequest(kind="keyed", count=1, provider="gpu"),
}
SAID: Final = {
    "nothing": ["succeed", "claim_kind"],
    "a limit": ["succeed", "ready_groups", "BEGIN", "lock_limits", "first_ready", "take", "COMMIT"],
    "a server": ["succeed", "ready_groups", "BEGIN", "lock_pools", "first_ready", "take", "COMMIT"],
    "a key queue": [
        *(
            "BEGIN",
            "running_lock_targets",
            "lock_limits",
            "succeed_together",
            "key_queue_counts",
            "promote",
            "tally",
            "COMMIT",
        ),
        "claim_kind",
    ],
}


@pytest.mark.parametrize("shared", list(SAID))
async def test_the_next_one_starts_after_a_few_questions(said: list[str], shared: str) -> None:
    store = PostgresStore(store_url())
    await store.open()
    worker = await Worker.start(store)
    await declare_limit(store, "license", 1)
    await declare_limit(store, "key:keyed", 1)
    await declare_pool(store, a=1)
    await add_many(store, 3, kind=ROOMS[shared].kind, limit_key="one" if shared == "a key queue" else None)

    async def next_one(before: Claim) -> Claim:
        await written_down()
        said.clear()
        server = ("gpu", before.server) if before.server is not None else None
        await store.finish([settlement_of(before, Succeeded(), server=server)])
        (claim,) = await worker.claim_kinds(ROOMS[shared])
        return claim

    (claim,) = await worker.claim_kinds(ROOMS[shared])
    await next_one(await next_one(claim))
    await written_down()
    assert said == SAID[shared]
    await store.close()


EXCHANGED: Final = {
    "a limit": ["BEGIN", "lock_limits", "succeed", "ready_groups", "first_ready", "take", "COMMIT"],
    "a server": ["BEGIN", "lock_pools", "succeed", "ready_groups", "first_ready", "take", "COMMIT"],
    "a key queue": [
        *("BEGIN", "lock_limits", "running_lock_targets", "succeed_together", "key_queue_counts", "promote"),
        *("claim_kind", "tally", "COMMIT"),
    ],
    "a key queue and a server": [
        *(
            "BEGIN",
            "lock_limits",
            "lock_pools",
            "running_lock_targets",
            "unhealthy_servers",
            "succeed_together",
            "key_queue_counts",
            "promote",
        ),
        *("ready_groups", "first_ready", "take", "tally", "COMMIT"),
    ],
}


@pytest.mark.parametrize("shared", EXCHANGED)
async def test_an_exchange_takes_a_few_round_trips(said: list[str], shared: str) -> None:
    store = PostgresStore(store_url())
    await store.open()
    worker = await Worker.start(store)
    await declare_limit(store, "license", 1)
    await declare_limit(store, "key:keyed", 1)
    await declare_pool(store, a=1)
    await add_many(store, 3, kind=ROOMS[shared].kind, limit_key="one" if "key" in shared else None)

    async def next_one(before: Claim) -> Claim:
        await written_down()
        said.clear()
        server = ("gpu", before.server) if before.server is not None else None
        outcome = settlement_of(before, Succeeded(), server=server, slot=before.slot)
        request = ClaimRequest(node_id=worker.node_id, kinds=(ROOMS[shared],), limit=1)
        _, (claim,) = await store.exchange([outcome], request)
        return claim

    (claim,) = await worker.claim_kinds(ROOMS[shared])
    await next_one(await next_one(claim))
    await written_down()
    assert said == EXCHANGED[shared]
    await store.close()


async def test_a_step_of_a_flow_releases_the_next_one_with_few_questions(said: list[str]) -> None:
    store = PostgresStore(store_url())
    await store.open()
    worker = await Worker.start(store)
    steps = [NewTask(kind="step"), NewTask(kind="step", after=(Need(step=0),))]
    for _ in range(2):
        await store.open_group(NewGroup(name="flow", tasks=tuple(steps), is_flow=True))

    async def finish() -> list[str]:
        claims = await worker.claim("step")
        outcomes = [settlement_of(claim, Succeeded(), has_dependents=claim.has_dependents) for claim in claims]
        await written_down()
        said.clear()
        await store.finish(outcomes)
        await written_down()
        return list(said)

    released = ["lock_dependents", "close_dependencies", "release_dependents"]
    moved = ["lock_groups", "succeed_together"]
    assert await finish() == ["BEGIN", "kinds_of_dependents", *moved, *released, "tally", "COMMIT"]
    assert await finish() == ["BEGIN", *moved, "end_empty_groups", "tally", "COMMIT"]
    await store.close()


async def test_a_schedule_fires_with_few_questions(said: list[str]) -> None:
    store = PostgresStore(store_url())
    await store.open()
    await store.create_schedule(NewSchedule(name="often", task=NewTask(kind="fired"), every=1000, overlap="queue"))

    async def fire() -> list[str]:
        await asyncio.sleep(0.002)
        said.clear()
        assert (await store.fire((), 100)).tasks
        await written_down()
        return [name for name in said if name != "insert_plain"]  # its text depends on the tasks

    assert await fire() == ["BEGIN", "due_schedules", "write_schedules", "next_schedule", "add_queues", "COMMIT"]
    assert await fire() == ["BEGIN", "due_schedules", "write_schedules", "next_schedule", "COMMIT"]
    await store.close()


async def test_whoever_looks_for_the_dead_asks_once_while_there_are_none(said: list[str]) -> None:
    store = PostgresStore(store_url())
    await store.open()
    worker = await Worker.start(store)
    await add(store)
    await worker.claim_one()
    await written_down()
    said.clear()
    assert await store.reap([], 10) == []
    await written_down()
    assert said == ["has_dead_nodes"]
    assert len(await store.reap([worker.node_id], 10)) == 1
    await store.close()


async def test_what_the_tasks_of_a_list_have_in_common_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, ...]] = []
    real = asyncpg.Connection.__init__

    def init(self: asyncpg.Connection[Any], *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self.add_query_logger(lambda record: sent.append(record.args) if "INSERT" in record.query else None)

    monkeypatch.setattr(asyncpg.Connection, "__init__", init)
    store = PostgresStore(store_url())
    await store.open()
    await store.announce_queues(["default"])
    for limit_key in (None, "ada"):
        await written_down()
        sent.clear()
        await store.insert(
            [NewTask(kind="a", tags=("red",), limit_key=limit_key, payload=b"%d" % n, priority=n) for n in range(3)]
        )
        await written_down()
        assert [value for value in sent[0] if isinstance(value, list)] == [[0, 1, 2], ["0", "1", "2"]]
    await store.close()
