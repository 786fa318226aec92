"""A place in what all nodes share is left to a better task that only another node could take."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.actions import Worker, add, add_many, amounts, declare_limit, demands, pass_time, pool
from tests.stores.test_capacity import ids_of, room

from synergon.model.claims import CandidateQuery, KindRequest
from synergon.model.limits import NewProvider
from synergon.model.outcomes import Succeeded
from synergon.stores.base import Store

LICENSED: dict[str, Any] = {"limits": ("license",)}
OURS = room("ours", **LICENSED)


def theirs(kind: str = "theirs", **more: Any) -> CandidateQuery:
    """What another node could take of a kind."""
    named = {name: more.pop(name) for name in ("queues", "labels", "totals", "limit") if name in more}
    return CandidateQuery(room=KindRequest(kind=kind, count=1, **(more or LICENSED)), **{"limit": 8, **named})


async def test_a_better_task_elsewhere_is_left_the_place(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    ours = await add(store, kind="ours")
    better = await add(store, kind="theirs", priority=1)
    claims = await worker.claim_rooms(OURS, rivals=(theirs(),))
    assert (ids_of(claims), claims.left, claims.unserved) == ([], ((better, "theirs"),), frozenset())
    assert ids_of(await worker.claim_rooms(OURS)) == [ours], "whoever asks without rivals leaves nothing"


async def test_the_older_of_equals_goes_first_wherever_it_runs(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    first, second, third = [await add(store, kind=kind) for kind in ("ours", "theirs", "ours")]
    (claim,) = await worker.claim_rooms(OURS, rivals=(theirs(),))
    assert claim.id == first
    await worker.finish(claim, Succeeded())
    claims = await worker.claim_rooms(OURS, rivals=(theirs(),))
    assert (ids_of(claims), claims.left) == ([], ((second, "theirs"),))
    other = await Worker.start(store, "other")
    (claim,) = await other.claim_rooms(room("theirs", **LICENSED), rivals=(theirs("ours"),))
    assert claim.id == second
    await other.finish(claim, Succeeded())
    claims = await worker.claim_rooms(OURS, rivals=(theirs(),))
    assert (ids_of(claims), claims.left) == ([third], ())


async def test_what_is_left_over_is_taken_in_order(store: Store, worker: Worker) -> None:
    """Of four places two go to the better ones; that the last of ours is not served is the fault of all of them."""
    await declare_limit(store, "license", 4)
    ours = await add_many(store, 3, kind="ours")
    better = await add_many(store, 2, kind="theirs", priority=1)
    await add_many(store, 2, kind="theirs", priority=-1)
    claims = await worker.claim_rooms(OURS, rivals=(theirs(),))
    assert (ids_of(claims), claims.left) == (ours[:2], tuple((task_id, "theirs") for task_id in better))


async def test_nobody_is_left_anything_where_there_is_enough(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 2)
    ours = await add(store, kind="ours")
    await add(store, kind="theirs", priority=1)
    claims = await worker.claim_rooms(OURS, rivals=(theirs(),))
    assert (ids_of(claims), claims.left) == ([ours], ())


async def test_no_more_is_left_than_others_could_take(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 2)
    ours = await add(store, kind="ours")
    await add_many(store, 3, kind="theirs", priority=1)
    assert ids_of(await worker.claim_rooms(OURS, rivals=(theirs(limit=1),))) == [ours]


# ---------------------------------------------------------------- whom nobody could serve


async def test_a_task_that_could_not_start_anyway_is_left_nothing(store: Store, worker: Worker) -> None:
    """It needs another place that is taken, its queue is paused, it has expired, nobody has its label or so much."""
    await declare_limit(store, "license", 1)
    await declare_limit(store, "full", 0)
    ours = await add(store, kind="ours")
    await add(store, kind="blocked", priority=1)
    await add(store, kind="theirs", priority=1, queue="paused")
    await add(store, kind="theirs", priority=1, queue="unserved")
    await add(store, kind="theirs", priority=1, expires_in=1)
    await add(store, kind="theirs", priority=1, requirements=demands("gpu"))
    await add(store, kind="theirs", priority=1, requirements=demands(cpu=2))
    await add(store, kind="theirs", priority=1, requirements=demands(forbids="spot"))
    await store.pause(["paused"])
    await pass_time(store, 10)
    node: dict[str, Any] = {"labels": frozenset({"spot"}), "totals": amounts(cpu=1)}
    rivals = (
        theirs("blocked", limits=("full", "license")),
        theirs(queues=frozenset({"default", "paused"}), **node),
    )
    claims = await worker.claim_rooms(OURS, rivals=rivals)
    assert (ids_of(claims), claims.left) == ([ours], ())


async def test_nobody_is_waited_for_once_somebody_has_not_come(store: Store, worker: Worker) -> None:
    """One had its time, and is still there: the claim waits for none of the others, either."""
    await declare_limit(store, "license", 1)
    ours, _ = await add_many(store, 2, kind="ours")
    late, _ = await add_many(store, 2, kind="theirs", priority=1)
    await add(store, kind="third", priority=1)
    rivals = (theirs(), theirs("third"))
    claims = await worker.claim_rooms(OURS, rivals=rivals, past=frozenset({late, ours, 10**9}))
    assert (ids_of(claims), claims.left, claims.unserved) == ([ours], (), frozenset({late}))


# ---------------------------------------------------------------- what is not for this node


async def test_what_the_request_covers_is_taken_and_not_left(store: Store, worker: Worker) -> None:
    """Others could take the same: whoever comes first has it."""
    await declare_limit(store, "license", 1)
    await add(store, kind="ours")
    better = await add(store, kind="theirs", priority=1)
    rooms = OURS, room("theirs", **LICENSED)
    claims = await worker.claim_rooms(*rooms, rivals=(theirs("ours"), theirs()))
    assert (ids_of(claims), claims.left) == ([better], ())


async def test_a_queue_that_is_not_served_here_has_better_ones(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    await add(store, kind="ours", queue="day")
    better = await add(store, kind="ours", priority=1, queue="night")
    claims = await worker.claim_rooms(OURS, queues=frozenset({"day"}), rivals=(theirs("ours"),))
    assert (ids_of(claims), claims.left) == ([], ((better, "ours"),))


async def test_a_kind_of_which_no_more_may_run_here_goes_on_elsewhere(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 2)
    await add(store, kind="ours")
    first, second = await add_many(store, 2, kind="few", priority=1)
    few = KindRequest(kind="few", count=1, **LICENSED)
    claims = await worker.claim_rooms(OURS, few, rivals=(theirs("few"), theirs("ours")))
    assert (ids_of(claims), claims.left) == ([first], ((second, "few"),))


@pytest.mark.parametrize("needed", [demands("gpu"), demands(cpu=2)])
async def test_what_does_not_fit_here_is_left_to_where_it_does(store: Store, worker: Worker, needed: str) -> None:
    """Whether the row says so, or the kind."""
    await declare_limit(store, "license", 1)
    ours = await add(store, kind="ours")
    big = await add(store, kind="ours", priority=1, requirements=needed)
    here: dict[str, Any] = {"totals": amounts(cpu=2), "free": amounts(cpu=1)}
    there = theirs("ours", labels=frozenset({"gpu"}), totals=amounts(cpu=2))
    claims = await worker.claim_rooms(OURS, rivals=(there,), **here)
    assert (ids_of(claims), claims.left) == ([], ((big, "ours"),))
    nobody = theirs("ours", totals=amounts(cpu=1))
    assert ids_of(await worker.claim_rooms(OURS, rivals=(nobody,), **here)) == [ours]


async def test_what_does_not_fit_by_its_kind_is_left_to_where_it_does(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    await add(store, kind="ours")
    big = await add(store, kind="big", priority=1)
    rooms = OURS, room("big", demands("gpu"), **LICENSED)
    there = CandidateQuery(room=rooms[1], labels=frozenset({"gpu"}))
    claims = await worker.claim_rooms(*rooms, rivals=(there,))
    assert (ids_of(claims), claims.left) == ([], ((big, "big"),))


# ---------------------------------------------------------------- servers


async def test_commands_that_are_asked_for_besides_change_nothing(store: Store, worker: Worker) -> None:
    await share_servers(store)
    ours = await add(store, kind="ours", provider="gpu")
    served: dict[str, Any] = {"provider": "gpu"}
    rooms = room("ours", **served), room("order", is_command=True, **served)
    claims = await worker.claim_rooms(*rooms, rivals=(theirs("ours", **served), theirs(**served)))
    assert (ids_of(claims), claims.left) == ([ours], ())


async def share_servers(store: Store) -> None:
    pools = {"gpu": pool(**{"http://host/a": 1}), "cpu": pool(**{"http://host/b": 1})}
    await store.declare([], [NewProvider(name=name, servers=servers) for name, servers in pools.items()])


async def test_a_server_is_left_to_a_better_task_of_its_pool(store: Store, worker: Worker) -> None:
    await share_servers(store)
    await add(store, kind="ours", provider="gpu")
    better = await add(store, kind="theirs", provider="gpu", priority=1)
    served: dict[str, Any] = {"provider": "gpu"}
    claims = await worker.claim_rooms(room("ours", **served), rivals=(theirs(**served),))
    assert (ids_of(claims), claims.left) == ([], ((better, "theirs"),))


# ---------------------------------------------------------------- commands


ON_GPU: dict[str, Any] = {"provider": "gpu"}
ORDERS = theirs("order", is_command=True, queues=frozenset(), **ON_GPU)
"""What a node could take that knows a command."""


async def order(store: Store, **more: Any) -> int:
    """A command that this node does not know."""
    return await add(store, kind="order", is_command=True, **ON_GPU, **more)


@pytest.mark.parametrize("target", [None, "http://host/a"])
async def test_a_server_is_left_to_a_command_that_only_another_node_knows(
    store: Store, worker: Worker, target: str | None
) -> None:
    """However good the task is, and from a paused queue, too."""
    await share_servers(store)
    ours = await add(store, kind="ours", priority=10, **ON_GPU)
    command = await order(store, target=target, queue="paused")
    await store.pause(["paused"])
    claims = await worker.claim_rooms(room("ours", **ON_GPU), queues=frozenset({"default"}), rivals=(ORDERS,))
    assert (ids_of(claims), claims.left) == ([], ((command, "order"),))
    claims = await worker.claim_rooms(room("ours", **ON_GPU), rivals=(ORDERS,), past=frozenset({command}))
    assert (ids_of(claims), claims.unserved) == ([ours], frozenset({command})), "nobody came for it"


async def test_a_command_that_cannot_have_the_server_holds_nobody_back(store: Store, worker: Worker) -> None:
    """It is for another one, it has expired, or nobody who knows it has its label."""
    await store.declare([], [NewProvider(name="gpu", servers=pool(**{"http://host/a": 1, "http://host/full": 0}))])
    ours = await add(store, kind="ours", **ON_GPU)
    for _ in range(10):
        await order(store, target="http://host/full")
    await order(store, expires_in=1)
    await order(store, requirements=demands("gpu"))
    await pass_time(store, 10)
    claims = await worker.claim_rooms(room("ours", **ON_GPU), rivals=(ORDERS,))
    assert (ids_of(claims), claims.left) == ([ours], ())


async def test_many_commands_for_a_full_server_hide_no_other(store: Store, worker: Worker) -> None:
    await store.declare([], [NewProvider(name="gpu", servers=pool(**{"http://host/a": 1, "http://host/full": 0}))])
    await add(store, kind="ours", **ON_GPU)
    for _ in range(10):
        await order(store, target="http://host/full")
    command = await order(store, target="http://host/a")
    claims = await worker.claim_rooms(room("ours", **ON_GPU), rivals=(ORDERS,))
    assert (ids_of(claims), claims.left) == ([], ((command, "order"),))


async def test_one_server_is_left_to_it_and_no_more(store: Store, worker: Worker) -> None:
    await store.declare([], [NewProvider(name="gpu", servers=pool(**{"http://host/a": 1, "http://host/b": 1}))])
    first, _ = await add_many(store, 2, kind="ours", **ON_GPU)
    command = await order(store, target="http://host/a")
    claims = await worker.claim_rooms(room("ours", **ON_GPU), rivals=(ORDERS,))
    assert (ids_of(claims), claims.left) == ([first], ((command, "order"),))
    assert claims[0].server == "http://host/b"


async def test_commands_go_in_their_order_wherever_they_run(store: Store, worker: Worker) -> None:
    await share_servers(store)
    older = await order(store)
    await add(store, kind="stop", is_command=True, **ON_GPU)
    mine = room("stop", is_command=True, **ON_GPU)
    claims = await worker.claim_rooms(mine, rivals=(ORDERS,))
    assert (ids_of(claims), claims.left) == ([], ((older, "order"),))
    both = mine, room("order", is_command=True, **ON_GPU)
    claims = await worker.claim_rooms(*both, rivals=(ORDERS,))
    assert (ids_of(claims), claims.left) == ([older], ()), "whoever knows it takes it"


@pytest.mark.parametrize("is_covered", [True, False])
async def test_a_limit_that_covers_servers_is_shared_by_their_providers(
    store: Store, worker: Worker, is_covered: bool
) -> None:
    await share_servers(store)
    if is_covered:
        await declare_limit(store, "http://host", 1)
    ours = await add(store, kind="ours", provider="gpu")
    better = await add(store, kind="theirs", provider="cpu", priority=1)
    claims = await worker.claim_rooms(room("ours", provider="gpu"), rivals=(theirs(provider="cpu"),))
    assert (ids_of(claims), claims.left) == (([], ((better, "theirs"),)) if is_covered else ([ours], ()))
