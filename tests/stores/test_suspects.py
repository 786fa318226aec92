"""Suspects: who becomes one, how one is claimed, and what clears it. On every store."""

from __future__ import annotations

import pytest
from tests.stores.actions import EMPTY_NODE, KIND, OUTCOMES, Worker, add, add_many, demands, read

from synergon.model.claims import ClaimRequest, Claims, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import HandedBack, KeyAssigned
from synergon.model.requirements import PROCESS, UNIT, WHOLE_NODE
from synergon.model.tasks import Reprioritizing
from synergon.policies import OWNER_DEATH_LIMIT
from synergon.stores.base import Store

CHILDREN = {PROCESS: 2 * UNIT}
"""A node that runs other tasks, with two free child processes."""


async def make_suspects(store: Store, number: int = 1, *, kind: str = KIND, **fields: object) -> list[int]:
    """Tasks whose node has died."""
    dead = await Worker.start(store, "dead")
    ids = await add_many(store, number, kind=kind, **fields)
    await dead.claim_kinds(KindRequest(kind=kind, count=number), totals=MACHINE, free=MACHINE)
    await store.reap(["dead"], number)
    return ids


MACHINE = EMPTY_NODE | {"cpu": 100 * UNIT}


async def claim(
    worker: Worker,
    free: dict[str, int] = CHILDREN,
    *,
    limit: int = 100,
    is_isolable: bool = True,
    patience: int | None = None,
    **more: object,
) -> Claims:
    """Claim with this capacity free of a node that has more."""
    return await worker.store.claim(
        ClaimRequest(
            node_id=worker.node_id,
            kinds=(KindRequest(kind=KIND, count=100, is_isolable=is_isolable),),
            limit=limit,
            totals=MACHINE,
            free=free,
            patience=patience,
            **more,  # type: ignore[arg-type]  # as the test says
        )
    )


# ---------------------------------------------------------------- who is one


async def test_the_tasks_of_a_dead_node_are_suspects(store: Store, worker: Worker) -> None:
    fresh = await add(store)
    await worker.claim()
    (suspect,) = await make_suspects(store)
    records = [await read(store, task_id) for task_id in (fresh, suspect)]
    assert [(record.is_suspect, record.owner_deaths, record.crashes) for record in records] == [
        (False, 0, 0),
        (True, 1, 0),
    ]


@pytest.mark.parametrize("text", ["", demands(cpu=1)])
@pytest.mark.parametrize("outcome", ["retrying at once", "retrying", "snoozed"])
async def test_an_attempt_that_ends_clears_the_suspicion(store: Store, worker: Worker, text: str, outcome: str) -> None:
    (task_id,) = await make_suspects(store, requirements=text)
    (taken,) = await claim(worker, MACHINE)
    await worker.finish(taken, OUTCOMES[outcome])
    record = await read(store, task_id)
    assert (record.is_suspect, record.owner_deaths, record.requirements) == (False, 0, text)


@pytest.mark.parametrize("outcome", [HandedBack(), HandedBack(delay=1), KeyAssigned(limit_key="a")], ids=repr)
async def test_a_task_that_was_handed_back_stays_a_suspect(
    store: Store, worker: Worker, outcome: HandedBack | KeyAssigned
) -> None:
    (task_id,) = await make_suspects(store)
    (taken,) = await claim(worker)
    await worker.finish(taken, outcome)
    record = await read(store, task_id)
    assert (record.is_suspect, record.owner_deaths) == (True, 1)


async def test_a_crash_counts_from_there_and_keeps_the_task_isolated(store: Store, worker: Worker) -> None:
    (task_id,) = await make_suspects(store)
    for outcome in ("crashed", "retrying at once"):
        (taken,) = await claim(worker)
        await worker.finish(taken, OUTCOMES[outcome])
        record = await read(store, task_id)
        assert (record.is_suspect, record.owner_deaths, record.crashes) == (True, 0, 1)


async def test_an_attempt_that_ends_gives_the_task_all_deaths_back(store: Store) -> None:
    task_id = await add(store)
    for number in range(OWNER_DEATH_LIMIT + 5):
        worker = await Worker.start(store, f"node-{number}")
        if number == OWNER_DEATH_LIMIT - 2:
            await worker.run(OUTCOMES["retrying at once"])
        await worker.claim_one()
        assert [task.state for task in await store.reap([worker.node_id], 10)] == [State.READY]
    assert (await read(store, task_id)).owner_deaths == 7


async def test_a_task_that_takes_the_key_of_a_suspect_is_none(store: Store, worker: Worker) -> None:
    (task_id,) = await make_suspects(store, key="k")
    assert await add(store, key="k", on_conflict="replace") == task_id
    record = await read(store, task_id)
    assert (record.is_suspect, record.owner_deaths) == (False, 0)


@pytest.mark.parametrize("text", ["", demands(cpu=1)])
@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_a_suspect_that_ended_is_none_and_neither_when_it_is_retried(
    store: Store, worker: Worker, text: str, outcome: str
) -> None:
    (task_id,) = await make_suspects(store, requirements=text)
    (taken,) = await claim(worker, MACHINE)
    await worker.finish(taken, OUTCOMES[outcome])
    assert not (await read(store, task_id)).is_suspect
    await store.retry([task_id])
    record = await read(store, task_id)
    assert (record.state, record.is_suspect, record.owner_deaths) == (State.READY, False, 0)
    assert record.requirements == text


async def test_a_suspect_that_was_cancelled_before_an_attempt_ended_stays_one(store: Store) -> None:
    (task_id,) = await make_suspects(store)
    await store.cancel([task_id])
    assert (await read(store, task_id)).is_suspect
    await store.retry([task_id])
    assert (await read(store, task_id)).is_suspect


async def test_a_task_that_crashed_to_its_end_is_isolated_again_when_it_is_retried(
    store: Store, worker: Worker
) -> None:
    task_id = await add(store)
    state = State.READY
    while not state.is_final:
        (taken,) = await claim(worker)
        state = (await worker.finish(taken, OUTCOMES["crashed"])).state or state
    record = await read(store, task_id)
    assert (record.reason, record.is_suspect) == (Reason.CRASHED, True)
    await store.retry([task_id])
    record = await read(store, task_id)
    assert (record.state, record.is_suspect, record.crashes) == (State.READY, True, 0)


# ---------------------------------------------------------------- in a child process


async def test_no_more_suspects_are_claimed_than_child_processes_are_free(store: Store, worker: Worker) -> None:
    suspects = await make_suspects(store, 4)
    fresh = await add_many(store, 3)
    assert [taken.id for taken in await claim(worker)] == [*fresh, *suspects[:2]]
    assert await claim(worker, {PROCESS: 0}) == []
    assert [taken.id for taken in await claim(worker)] == suspects[2:]


async def test_suspects_are_claimed_behind_others_of_their_priority(store: Store, worker: Worker) -> None:
    high, middle = await make_suspects(store, 2)
    await store.set_priority([Reprioritizing(id=high, priority=1)])
    fresh, low = await add_many(store, 1), await add_many(store, 1, priority=-1)
    order = [taken.id for _ in range(4) for taken in await claim(worker, limit=1)]
    assert order == [high, *fresh, middle, *low]


async def test_suspects_that_wait_do_not_keep_others_waiting(store: Store, worker: Worker) -> None:
    await make_suspects(store, 3, priority=1)
    fresh = await add_many(store, 2)
    claims = await claim(worker, {PROCESS: 0}, patience=0)
    assert [taken.id for taken in claims] == fresh
    assert (claims.reserved, claims.unfit) == (None, frozenset({KIND}))


# ---------------------------------------------------------------- alone


async def test_a_suspect_that_cannot_be_isolated_is_claimed_by_an_empty_node_and_alone(
    store: Store, worker: Worker
) -> None:
    first, second = await make_suspects(store, 2)
    assert await claim(worker, CHILDREN | {WHOLE_NODE: 0}, is_isolable=False) == []
    assert [taken.id for taken in await claim(worker, MACHINE, is_isolable=False)] == [first]
    fresh = await add(store)
    assert [taken.id for taken in await claim(worker, MACHINE, is_isolable=False)] == [fresh]
    assert [taken.id for taken in await claim(worker, MACHINE, is_isolable=False)] == [second]


async def test_nothing_is_claimed_beside_a_suspect_that_runs_alone(store: Store, worker: Worker) -> None:
    (suspect,) = await make_suspects(store, priority=1)
    await add_many(store, 3)
    assert [taken.id for taken in await claim(worker, MACHINE, is_isolable=False)] == [suspect]


async def test_a_node_is_emptied_for_a_suspect_that_has_waited(store: Store, worker: Worker) -> None:
    (suspect,) = await make_suspects(store)
    await add_many(store, 3)
    busy = MACHINE | {WHOLE_NODE: 0}
    claims = await claim(worker, busy, is_isolable=False, limit=1, patience=0)
    assert len(claims) == 1
    assert claims.reserved is not None
    assert claims.reserved.id == suspect
    held = claims.reserved.requirements.cost
    assert held == {WHOLE_NODE: UNIT}
    claims = await claim(worker, busy, is_isolable=False, patience=0, reserved_task=suspect, held=held)
    assert (list(claims), claims.reserved and claims.reserved.id) == ([], suspect)
    claims = await claim(worker, MACHINE, is_isolable=False, patience=0, reserved_task=suspect, held=held)
    assert [taken.id for taken in claims] == [suspect]
