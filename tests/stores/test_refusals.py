"""Tasks whose arguments do not fit the function of the node that claimed them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.stores.actions import ERROR, HOUR, KIND, Worker, add, add_many, demands, new_node, read, until
from tests.stores.test_capacity import kind_request, machine

from synergon.model.claims import CandidateQuery, Claim, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewLimit
from synergon.model.outcomes import HandedBack, Refused, Verdict
from synergon.model.requirements import KIND_DEFAULT, parse_requirements
from synergon.policies import REFUSAL_LIMIT
from synergon.stores.base import Store


@pytest.fixture
async def old(store: Store) -> Worker:
    return await Worker.start(store, "old")


@pytest.fixture
async def new(store: Store, old: Worker) -> Worker:
    return await Worker.start(store, "new")


async def refuse(worker: Worker, claim: Claim | None = None) -> Verdict:
    """Claim the one task that there is, and refuse it."""
    claim = claim or await worker.claim_one()
    return await worker.finish(claim, Refused(error=ERROR, requirements=claim.requirements))


async def test_a_refused_task_is_ready_again_uncharged_and_says_who_refused_it_and_why(
    store: Store, old: Worker, new: Worker
) -> None:
    task_id = await add(store)
    assert (await refuse(old)).state is State.READY
    record = await read(store, task_id)
    assert (record.state, record.attempts, record.crashes) == (State.READY, 0, 0)
    assert parse_requirements(record.requirements).refused_by == ("old",)
    (error,) = record.errors
    assert (error.type, error.message) == (ERROR.type, ERROR.message)
    assert error.at is not None


async def test_the_node_does_not_get_it_again_and_another_one_does(store: Store, old: Worker, new: Worker) -> None:
    task_id = await add(store)
    await refuse(old)
    assert await old.claim_ids() == []
    assert await old.claim_ids(KIND, "other") == []
    (claim,) = await new.claim()
    assert (claim.id, claim.claim_no, claim.attempts) == (task_id, 2, 1)


async def test_the_node_goes_on_with_tasks_behind_it(store: Store, old: Worker, new: Worker) -> None:
    refused, *others = await add_many(store, 4)
    (claim,) = await old.claim(limit=1)
    assert claim.id == refused
    await refuse(old, claim)
    assert await old.claim_ids() == others


async def test_a_refused_task_keeps_its_position(store: Store, old: Worker, new: Worker) -> None:
    ids = await add_many(store, 3)
    (claim,) = await old.claim(limit=1)
    await refuse(old, claim)
    assert await new.claim_ids() == ids


async def test_what_a_node_would_take_is_shown_without_what_it_has_refused(
    store: Store, old: Worker, new: Worker
) -> None:
    task_id = await add(store)
    await refuse(old)
    query = CandidateQuery(kind_request=KindRequest(kind=KIND, count=1))
    assert await store.read_candidates(replace(query, node_id="old")) == []
    assert [record.id for record in await store.read_candidates(replace(query, node_id="new"))] == [task_id]
    assert [record.id for record in await store.read_candidates(query)] == [task_id]


async def test_a_task_that_every_live_node_has_refused_has_failed(store: Store, old: Worker, new: Worker) -> None:
    task_id = await add(store)
    await refuse(old)
    assert (await refuse(new)).state is State.FAILED
    record = await read(store, task_id)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.ERROR, 0)
    assert len(record.errors) == 2


async def test_a_task_of_a_single_node_fails_at_once(store: Store, old: Worker) -> None:
    await add(store)
    assert (await refuse(old)).state is State.FAILED


@pytest.mark.parametrize("other", ["another kind", "another queue", "no lease"])
async def test_nodes_that_could_not_run_it_are_not_waited_for(store: Store, old: Worker, other: str) -> None:
    node = new_node("other", 1 if other == "no lease" else HOUR)
    if other == "another kind":
        node = replace(node, kinds=("another",))
    if other == "another queue":
        node = replace(node, queues=("another",))
    await store.register(node)
    if other == "no lease":
        await until(lambda: _is_over(store))
    await add(store)
    assert (await refuse(old)).state is State.FAILED


async def _is_over(store: Store) -> bool:
    return all(node.lease_remaining <= 0 for node in await store.nodes() if node.id == "other")


async def test_a_node_that_serves_the_queue_is_waited_for(store: Store, old: Worker) -> None:
    await store.register(replace(new_node("other"), queues=("default", "more")))
    await add(store)
    assert (await refuse(old)).state is State.READY


async def test_ten_refusals_end_a_task_whoever_is_left(store: Store) -> None:
    workers = [await Worker.start(store, f"node-{number}") for number in range(REFUSAL_LIMIT + 1)]
    task_id = await add(store)
    states = [(await refuse(worker)).state for worker in workers[:REFUSAL_LIMIT]]
    assert states == [State.READY] * (REFUSAL_LIMIT - 1) + [State.FAILED]
    assert await workers[-1].claim_ids() == []
    assert len((await read(store, task_id)).errors) == REFUSAL_LIMIT


@pytest.mark.parametrize("is_limited", [False, True])
async def test_a_task_whose_last_hope_has_left_is_taken_again_and_then_fails(
    store: Store, old: Worker, new: Worker, is_limited: bool
) -> None:
    """While another node might run it, the node that has refused it does not get it."""
    await store.declare([NewLimit(name="db", value=5)], [])
    wanted = KindRequest(kind=KIND, count=9, limits=("db",) if is_limited else ())
    task_id = await add(store)
    await refuse(old)
    assert await old.claim_kinds(wanted) == []
    await store.unregister("new")
    (claim,) = await old.claim_kinds(wanted)
    assert claim.id == task_id
    assert (await refuse(old, claim)).state is State.FAILED


async def test_a_node_that_starts_meanwhile_gets_its_chance(store: Store, old: Worker, new: Worker) -> None:
    task_id = await add(store)
    await refuse(old)
    await store.unregister("new")
    (claim,) = await old.claim()
    newest = await Worker.start(store, "newest")
    assert (await refuse(old, claim)).state is State.READY
    assert await old.claim_ids() == []
    assert await newest.claim_ids() == [task_id]


async def test_a_refusal_by_a_stale_claim_changes_nothing(store: Store, old: Worker, new: Worker) -> None:
    task_id = await add(store)
    claim = await old.claim_one()
    await old.finish(claim, HandedBack())
    (again,) = await old.claim()
    assert (await refuse(old, claim)).state is not State.FAILED
    record = await read(store, task_id)
    assert (record.state, record.claim_no, record.requirements) == (State.RUNNING, again.claim_no, KIND_DEFAULT)


async def test_a_refusal_that_is_repeated_counts_once(store: Store, old: Worker, new: Worker) -> None:
    task_id = await add(store)
    claim = await old.claim_one()
    assert [(await refuse(old, claim)).state for _ in range(2)] == [State.READY, State.READY]
    record = await read(store, task_id)
    assert (record.attempts, len(record.errors)) == (0, 1)


async def test_a_refused_task_that_is_to_be_cancelled_is_cancelled(store: Store, old: Worker, new: Worker) -> None:
    await add(store)
    claim = await old.claim_one()
    await store.cancel([claim.id])
    assert (await refuse(old, claim)).state is State.CANCELLED


async def test_an_operators_retry_forgets_the_refusals(store: Store, old: Worker, new: Worker) -> None:
    task_id = await add(store)
    await refuse(old)
    await refuse(new)
    (moved,) = await store.retry([task_id])
    assert moved.state is State.READY
    assert (await read(store, task_id)).requirements == KIND_DEFAULT
    assert await old.claim_ids() == [task_id]


async def test_requirements_remain_what_they_were(store: Store, old: Worker, new: Worker) -> None:
    said = demands("east", cpu=2)
    task_id = await add(store, requirements=said)
    (claim,) = await old.claim_kinds(kind_request(KIND), **machine("east", cpu=2))
    await refuse(old, claim)
    assert len(await new.claim_kinds(kind_request(KIND), **machine("west", cpu=2))) == 0
    (claim,) = await new.claim_kinds(kind_request(KIND), **machine("east", cpu=2))
    assert (await refuse(new, claim)).state is State.FAILED
    await store.retry([task_id])
    assert (await read(store, task_id)).requirements == said


async def test_a_kinds_own_requirements_hold_for_a_refused_task(store: Store, old: Worker, new: Worker) -> None:
    """Its row says nothing but who has refused it."""
    await add(store)
    await refuse(old)
    of_kind = kind_request(KIND, demands("east", cpu=2))
    assert len(await new.claim_kinds(of_kind, **machine("west", cpu=2))) == 0
    assert len(await new.claim_kinds(of_kind, **machine("east", cpu=1))) == 0
    assert len(await new.claim_kinds(of_kind, **machine("east", cpu=2))) == 1


async def test_a_refused_task_keeps_its_place_in_its_key_queue(store: Store, old: Worker, new: Worker) -> None:
    await store.declare([NewLimit(name=f"key:{KIND}", value=1)], [])
    first, second = [await add(store, limit_key="ada") for _ in range(2)]
    (claim,) = await old.claim()
    assert (await refuse(old, claim)).state is State.READY
    assert await old.claim_ids() == []
    assert await new.claim_ids() == [first]
    assert (await read(store, second)).state is State.WAITING
