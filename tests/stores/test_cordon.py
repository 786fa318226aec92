"""What a node's row says of it: that it may take nothing, and what it tells others of itself."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    HOUR,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    amounts,
    declare_limit,
    declare_pool,
    demands,
    new_node,
    pass_lease,
    pass_time,
    read,
)
from tests.stores.test_capacity import ids_of, kind_request, machine

from synergon.errors import LeaseLost
from synergon.model.claims import KindRequest
from synergon.model.nodes import NodeRecord
from synergon.model.operator_actions import NewAction, Verb
from synergon.model.outcomes import HandedBack, Succeeded
from synergon.model.record import from_datetime
from synergon.stores.base import Store


async def node(store: Store, node_id: str = "node-1") -> NodeRecord:
    (found,) = [one for one in await store.nodes() if one.id == node_id]
    return found


async def order(store: Store, verb: Verb, node_id: str = "node-1") -> None:
    assert not (await store.act(NewAction(verb=verb, subject=node_id, who="ada"))).is_rejected


@pytest.mark.parametrize("verb", ["cordon", "drain", "restart"])
async def test_from_the_order_on_the_node_gets_nothing_until_it_is_uncordoned(
    store: Store, worker: Worker, verb: Verb
) -> None:
    await declare_limit(store, "license", 9)
    await declare_pool(store, a=9)
    await add_many(store, 2)
    (running,) = await worker.claim(limit=1)
    await add(store, kind="stop", is_command=True, provider="gpu", max_attempts=1)
    big = await add(store, kind="big", requirements=demands(cpu=2))
    before = await store.now()
    await order(store, verb)
    kind_requests = (
        kind_request(limits=("license",)),
        kind_request("big", is_urgent=True),
        KindRequest(kind="stop", count=1, provider="gpu", is_command=True),
    )
    for asked in (kind_requests, (kind_request(),)):
        claims = await worker.claim_kinds(*asked, totals=amounts(cpu=2), patience=0, shares=(amounts(cpu=1),))
        assert (ids_of(claims), claims.reserved, claims.is_cordoned) == ([], None, True)
    assert (await read(store, big)).reserved_by is None
    row = await node(store)
    assert row.cordoned_at is not None
    assert before <= from_datetime(row.cordoned_at) <= await store.now()
    assert (await worker.finish(running, Succeeded())).state == "succeeded"
    await order(store, "uncordon")
    claims = await worker.claim_kinds(*kind_requests, **machine(cpu=2))
    assert (len(claims), claims.is_cordoned) == (3, False)
    assert (await node(store)).cordoned_at is None


async def test_a_cordon_is_one_node_s_and_a_stop_is_none(store: Store, worker: Worker) -> None:
    other = await Worker.start(store, "other")
    ids = await add_many(store, 2)
    await order(store, "cordon")
    await order(store, "stop", "other")
    assert await other.claim_ids(limit=1) == ids[:1]
    assert (await worker.claim()).is_cordoned
    await store.unregister("node-1")
    with pytest.raises(LeaseLost):
        await worker.claim()


async def test_a_second_cordon_changes_nothing(store: Store, worker: Worker) -> None:
    await order(store, "cordon")
    first = (await node(store)).cordoned_at
    await pass_time(store, MILLISECOND)
    await order(store, "drain")
    assert (await node(store)).cordoned_at == first
    assert (await worker.claim()).is_cordoned


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "restart"])
async def test_nobody_is_cordoned_who_is_not_there(store: Store, worker: Worker, verb: Verb) -> None:
    refused = await store.act(NewAction(verb=verb, subject="gone", who="ada"))
    assert refused.outcome == "rejected: no node of that id"
    assert await store.audit() == [refused]
    assert not (await worker.claim()).is_cordoned


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "restart", "stop"])
async def test_an_order_to_a_node_whose_lease_is_over_is_refused_and_changes_nothing(store: Store, verb: Verb) -> None:
    """Also if the node is not dead after all, and renews its lease."""
    late = Worker(store, "late")
    await store.register(replace(new_node("late", lease=MILLISECOND), is_cordoned=verb == "uncordon"))
    await pass_lease(store, "late")
    before = (await node(store, "late")).cordoned_at
    refused = await store.act(NewAction(verb=verb, subject="late", who="ada"))
    assert (refused.outcome, refused.is_rejected) == ("rejected: its lease is over", True)
    assert (await node(store, "late")).cordoned_at == before
    assert await store.audit(node_id="late") == []
    keeper = await store.keeper()
    assert await keeper.renew("late", HOUR)
    await keeper.close()
    await add(store)
    assert (await late.claim()).is_cordoned is (verb == "uncordon")


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "restart", "stop", "pause", "resume", "cancel"])
async def test_what_comes_with_its_refusal_is_only_written_down(store: Store, worker: Worker, verb: Verb) -> None:
    task_id = await add(store)
    subject = {"pause": "default", "resume": "default", "cancel": str(task_id)}.get(verb, "node-1")
    refused = await store.act(NewAction(verb=verb, subject=subject, who="ada", rejection="its process is gone"))
    assert (refused.outcome, refused.is_rejected) == ("rejected: its process is gone", True)
    assert await store.audit() == [refused]
    assert await store.audit(node_id="node-1") == []
    assert (await node(store)).cordoned_at is None
    assert await worker.claim_ids() == [task_id]


async def test_orders_to_drain_and_to_restart_wait_for_the_node(store: Store, worker: Worker) -> None:
    for verb in ("drain", "restart"):
        await order(store, verb)
    waiting = await store.audit(node_id=worker.node_id)
    assert [one.verb for one in waiting] == ["drain", "restart"]
    assert await store.action_done(waiting[0].id, "drained")
    assert [one.verb for one in await store.audit(node_id=worker.node_id)] == ["restart"]


async def test_a_node_may_come_cordoned(store: Store) -> None:
    await store.register(replace(new_node("node-1"), is_cordoned=True))
    await add(store)
    worker = Worker(store, "node-1")
    assert (await node(store)).is_cordoned
    assert (await worker.claim()).is_cordoned
    await order(store, "uncordon")
    assert len(await worker.claim()) == 1


# ---------------------------------------------------------------- what it says of itself


async def test_others_can_read_what_a_node_says_of_itself_and_how_long_ago(store: Store) -> None:
    await store.register(replace(new_node("node-1"), published=b'{"free":{"cpu":1}}'))
    await Worker.start(store, "other")
    assert msgspec.json.decode((await node(store)).published) == {"free": {"cpu": 1}}
    assert msgspec.json.decode((await node(store, "other")).published) == {}
    keeper = await store.keeper()
    await pass_time(store, 20 * MILLISECOND)
    assert await keeper.renew("node-1", HOUR)
    row = await node(store)
    assert msgspec.json.decode(row.published) == {"free": {"cpu": 1}}
    assert row.published_ago >= 0.02
    before = await store.now()
    assert await keeper.renew("node-1", HOUR, b'{"free":{"cpu":2}}')
    row = await node(store)
    after = await store.now()
    assert msgspec.json.decode(row.published) == {"free": {"cpu": 2}}
    assert 0 <= row.published_ago <= (after - before + 2 * MILLISECOND) / 1_000_000  # clocks have milliseconds
    assert not await keeper.renew("stranger", HOUR, b"{}")
    await keeper.close()


# ---------------------------------------------------------------- spared


async def test_a_task_that_has_yielded_is_spared_for_a_while(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    assert claim.protected_for == 0
    await worker.finish(claim, HandedBack(protected_for=HOUR))
    assert (await read(store, task_id)).attempts == 0
    claim = await worker.claim_one()
    assert 0 < claim.protected_for <= HOUR
    await worker.finish(claim, HandedBack(protected_for=HOUR))
    await declare_limit(store, "license", 1)
    (claim,) = await worker.claim_kinds(kind_request(limits=("license",)))
    assert 0 < claim.protected_for <= HOUR


async def test_going_back_for_another_reason_does_not_shorten_that(store: Store, worker: Worker) -> None:
    await add(store)
    await worker.run(HandedBack(protected_for=HOUR))
    await worker.run(HandedBack())
    assert (await worker.claim_one()).protected_for > 0


async def test_it_is_spared_no_longer_than_that(store: Store, worker: Worker) -> None:
    await add(store)
    await worker.run(HandedBack(protected_for=MILLISECOND))
    await pass_time(store, MILLISECOND)
    assert (await worker.claim_one()).protected_for == 0


async def test_a_task_that_is_run_again_by_hand_or_replaced_is_spared_no_more(store: Store, worker: Worker) -> None:
    task_id = await add(store, key="k")
    await worker.run(HandedBack(protected_for=HOUR))
    await worker.run(OUTCOMES["failed"])
    await store.retry([task_id])
    claim = await worker.claim_one()
    assert claim.protected_for == 0
    await worker.finish(claim, HandedBack(protected_for=HOUR))
    await add(store, key="k", on_conflict="replace")
    assert (await worker.claim_one()).protected_for == 0
