"""Tenants take turns: tags are given when tasks become ready, and claims follow them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.stores.actions import (
    HOUR,
    KIND,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    demands,
    pass_time,
    read,
    until,
)
from tests.stores.conftest import make_folder, make_store
from tests.stores.test_capacity import ids_of, machine

from synergon.model.claims import CandidateQuery, KindRequest
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.limits import NewBatch, NewLimit
from synergon.model.outcomes import Succeeded
from synergon.model.requirements import PROCESS, UNIT, WHOLE_NODE
from synergon.model.tasks import NewTask, Reprioritizing, Rescheduling
from synergon.options.tenants import STEP
from synergon.stores.base import Store
from synergon.stores.rules.fair_shares import LAST_TAG

FAIR = KindRequest(kind=KIND, count=1000, is_fair=True)


async def put(store: Store, tenant: str, number: int = 1, weight: float = 1, **fields: Any) -> list[int]:
    """Insert tasks of a tenant; their ids."""
    return await add_many(store, number, fair_key=tenant, fair_step=round(STEP / weight), **fields)


async def tenants_of(store: Store, ids: Sequence[int]) -> str:
    """The tenants of these tasks, each a letter."""
    return "".join(record.fair_key or "-" for record in await store.get(ids) if record is not None)


async def taken(store: Store, worker: Worker, number: int, *others: KindRequest) -> str:
    """The tenants of the tasks that the node starts next, one by one."""
    found: list[int] = []
    while len(found) < number and (claims := await worker.claim_kinds(FAIR, *others, limit=1)):
        found += ids_of(claims)
    return await tenants_of(store, found)


async def tag_of(store: Store, task_id: int) -> int:
    return (await read(store, task_id)).fair_tag


# ---------------------------------------------------------------- turns


async def test_tenants_take_turns_however_many_tasks_one_of_them_put_in_first(store: Store, worker: Worker) -> None:
    await put(store, "a", 6)
    await put(store, "b", 3)
    assert await taken(store, worker, 9) == "ababab" + "aaa"


async def test_one_claim_of_many_follows_the_turns(store: Store, worker: Worker) -> None:
    await put(store, "a", 500)
    late = await put(store, "b", 10)
    first = ids_of(await worker.claim_kinds(FAIR, limit=30))
    assert await tenants_of(store, first) == "ab" * 10 + "a" * 10
    assert set(late) <= set(first)


async def test_a_claim_that_plans_several_times_follows_the_turns(store: Store, worker: Worker) -> None:
    """Each batch that a claim takes may make the next one ready, so the claim plans again."""
    await store.declare([NewLimit(name="key:items", value=None, batch=NewBatch(size=2, wait=HOUR))], [])
    await add_many(store, 4, kind="items", limit_key="")
    await put(store, "a", 5)
    await put(store, "b", 2)
    items = KindRequest(kind="items", count=100, batch_size=2)
    totals = {PROCESS: 10 * UNIT, WHOLE_NODE: UNIT}
    claims = await worker.claim_kinds(FAIR, items, limit=100, totals=totals, free=totals)
    assert len(claims) == 11
    assert (await tenants_of(store, ids_of(claims))).replace("-", "") == "ababaaa"


async def test_ten_tasks_behind_many_are_started_before_the_next_thirty_of_the_other(
    store: Store, worker: Worker
) -> None:
    number = 20_000 if type(store).__name__ != "PostgresStore" else 2_000
    await put(store, "a", number)
    await worker.claim_kinds(FAIR, limit=100)  # the other has been at it for a while
    await put(store, "b", 10)
    following = await taken(store, worker, 40)
    assert following.count("b") == 10
    assert following.rindex("b") < 30


async def test_weights_decide_about_the_shares(store: Store, worker: Worker) -> None:
    await put(store, "a", 1200, weight=3)
    await put(store, "b", 1200, weight=1)
    started = Counter(await tenants_of(store, ids_of(await worker.claim_kinds(FAIR, limit=1000))))
    assert started["a"] == pytest.approx(750, rel=0.05)
    assert started["b"] == pytest.approx(250, rel=0.05)


async def test_a_tenant_that_was_away_has_no_credit(store: Store, worker: Worker) -> None:
    await put(store, "a", 100)
    assert await taken(store, worker, 50) == "a" * 50
    await put(store, "b", 20)
    assert await taken(store, worker, 10) == "ab" * 5


@pytest.mark.parametrize("outcome", [None, "snoozed"])
async def test_a_tenant_that_joins_while_no_task_is_ready_has_no_credit(
    store: Store, worker: Worker, outcome: str | None
) -> None:
    """The last task of the other tenant runs, or waits for a retry."""
    await put(store, "a", 50)
    *others, last = await worker.claim_kinds(FAIR)
    for claim in others:
        await worker.finish(claim, OUTCOMES["succeeded"])
    if outcome is not None:
        await worker.finish(last, OUTCOMES[outcome])
    await put(store, "b", 20)
    await put(store, "a", 1)
    assert "a" in await taken(store, worker, 3)


async def test_a_tenant_that_joins_while_the_queue_is_paused_has_no_credit(store: Store, worker: Worker) -> None:
    await put(store, "a", 100)
    for claim in await worker.claim_kinds(FAIR, limit=50):
        await worker.finish(claim, OUTCOMES["succeeded"])
    await store.pause(["default"])
    await put(store, "b", 20)
    await store.resume(["default"])
    assert await taken(store, worker, 10) == "ab" * 5


async def test_a_paused_queue_does_not_hold_the_turns_back_while_no_other_task_is_ready(
    store: Store, worker: Worker
) -> None:
    await put(store, "c", 1, queue="paused")
    await store.pause(["paused"])
    await put(store, "a", 50)
    await worker.claim_kinds(FAIR)
    await put(store, "b", 20)
    await put(store, "a", 10)
    assert await taken(store, worker, 10) == "bb" + "ab" * 4


async def test_tasks_of_a_tenant_start_in_the_order_of_their_arrival(store: Store, worker: Worker) -> None:
    ids = [task_id for _ in range(5) for task_id in await put(store, "a", 2)]
    assert ids_of(await worker.claim_kinds(FAIR)) == ids


async def test_tasks_without_a_tenant_come_first(store: Store, worker: Worker) -> None:
    await put(store, "a", 2)
    await add_many(store, 2)
    await put(store, "b")
    assert await taken(store, worker, 5) == "--aba"


# ---------------------------------------------------------------- what does not put a tenant behind


@pytest.mark.parametrize("way", ["delayed", "cancelled", "deleted", "rescheduled"])
async def test_tasks_that_do_not_wait_for_a_turn_cost_none(store: Store, worker: Worker, way: str) -> None:
    await put(store, "b", 20)
    idle = await put(store, "a", 300, delay=HOUR if way == "delayed" else None)
    if way == "cancelled":
        await store.cancel(idle)
    elif way == "deleted":
        await store.delete(idle)
    elif way == "rescheduled":
        await store.reschedule([Rescheduling(id=task_id, delay=HOUR) for task_id in idle])
    await put(store, "a", 5)
    assert await taken(store, worker, 10) == "ba" * 5


@pytest.mark.parametrize("way", ["cancelled", "deleted"])
async def test_tasks_behind_one_that_is_gone_keep_their_turns(store: Store, worker: Worker, way: str) -> None:
    *gone, remaining = await put(store, "a", 5)
    await put(store, "b", 20)
    await (store.cancel(gone) if way == "cancelled" else store.delete(gone))
    (new,) = await put(store, "a")
    assert [await tag_of(store, task_id) for task_id in (remaining, new)] == [1 + 4 * STEP, 1 + 5 * STEP]
    assert await taken(store, worker, 8) == "bbbb" + "abba"


async def test_a_backlog_of_lower_priority_costs_no_turn(store: Store, worker: Worker) -> None:
    await put(store, "a", 50)
    await put(store, "b", 5, priority=1)
    await put(store, "a", 5, priority=1)
    assert await taken(store, worker, 10) == "ba" * 5


async def test_a_paused_queue_does_not_hold_the_turns_back(store: Store, worker: Worker) -> None:
    await put(store, "c", 1, queue="paused")
    await store.pause(["paused"])
    await put(store, "a", 100)
    assert await taken(store, worker, 50) == "a" * 50
    await put(store, "b", 20)
    assert await taken(store, worker, 10) == "ab" * 5


async def test_keys_that_are_taken_cost_no_turn(store: Store, worker: Worker) -> None:
    await put(store, "b", 20)
    (first,) = await put(store, "a", 1, key="k")
    for _ in range(5):
        assert await put(store, "a", 10, key="k") == [first] * 10
    await put(store, "a", 4)
    assert await taken(store, worker, 10) == "ba" * 5


# ---------------------------------------------------------------- when a task gets its tag


@pytest.mark.parametrize("outcome", ["retrying at once", "handed back", "crashed"])
async def test_a_task_that_runs_again_retains_its_turn(store: Store, worker: Worker, outcome: str) -> None:
    await put(store, "a", 3)
    (claim,) = await worker.claim_kinds(FAIR, limit=1)
    tag = await tag_of(store, claim.id)
    await worker.finish(claim, OUTCOMES[outcome])
    assert (await tag_of(store, claim.id), tag) == (tag, 1)


async def test_a_retry_that_is_due_later_retains_its_turn(store: Store, worker: Worker) -> None:
    await put(store, "a", 3)
    claims = await worker.claim_kinds(FAIR, limit=2)
    tag = await tag_of(store, claims[1].id)
    await worker.finish(claims[1], OUTCOMES["snoozed"])
    await store.reschedule([Rescheduling(id=claims[1].id, delay=0)])
    assert await tag_of(store, claims[1].id) == tag == 1 + STEP


async def test_a_delayed_task_gets_its_turn_when_it_is_due(store: Store, worker: Worker) -> None:
    (later,) = await put(store, "a", 1, delay=5 * MILLISECOND)
    assert await tag_of(store, later) == 0
    await put(store, "b", 20)
    assert await taken(store, worker, 10) == "b" * 10
    await pass_time(store, 6 * MILLISECOND)

    async def is_ready() -> bool:
        await store.wake(100)
        return (await read(store, later)).state is State.READY

    await until(is_ready)
    assert await tag_of(store, later) == 1 + 10 * STEP
    assert "a" in await taken(store, worker, 2)


async def test_a_due_time_in_the_past_is_a_turn_at_once(store: Store) -> None:
    await put(store, "a", 3)
    (overdue,) = await put(store, "a", 1, run_at=await store.now() - HOUR)
    assert await tag_of(store, overdue) == 1 + 3 * STEP


async def test_the_task_that_follows_a_group_gets_its_turn_when_the_group_ends(store: Store, worker: Worker) -> None:
    await put(store, "b", 5)
    member = NewTask(kind="member")
    then = NewTask(kind=KIND, fair_key="a", fair_step=STEP)
    opened = await store.open_group(NewGroup(name="g", tasks=(member,), then=then))
    assert opened.then is not None
    assert await tag_of(store, opened.then.id) == 0
    (claim,) = await worker.claim("member")
    await worker.finish(claim, OUTCOMES["succeeded"])
    assert await tag_of(store, opened.then.id) == 1


async def test_an_operators_retry_gets_a_new_turn(store: Store, worker: Worker) -> None:
    failed = await put(store, "a", 10)
    for claim in await worker.claim_kinds(FAIR):
        await worker.finish(claim, OUTCOMES["failed"])
    assert await tag_of(store, failed[0]) == 0
    await put(store, "b", 10)
    await store.retry(failed)
    assert [await tag_of(store, task_id) for task_id in failed] == [1 + number * STEP for number in range(10)]
    assert sorted(await taken(store, worker, 10)) == list("aaaaabbbbb")


async def test_another_priority_is_another_turn(store: Store) -> None:
    low = await put(store, "a", 3)
    high = await put(store, "a", 2, priority=5)
    await store.set_priority([Reprioritizing(id=low[2], priority=5)])
    assert await tag_of(store, low[2]) == await tag_of(store, high[1]) + STEP
    await store.set_priority([Reprioritizing(id=low[1], priority=0)])
    assert await tag_of(store, low[1]) == 1 + STEP


async def test_a_replaced_task_gets_the_turn_of_its_new_tenant(store: Store) -> None:
    await put(store, "b", 4)
    (held,) = await put(store, "a", 1, key="k")
    assert await put(store, "b", 1, key="k", on_conflict="replace") == [held]
    record = await read(store, held)
    assert (record.fair_key, record.fair_tag) == ("b", 1 + 4 * STEP)


async def test_children_get_turns(store: Store, worker: Worker) -> None:
    parent = await add(store, kind="parent")
    (claim,) = await worker.claim("parent")
    child = NewTask(kind=KIND, fair_key="a", fair_step=STEP)
    verdict = await worker.finish(claim, Succeeded(result=b"1", children=(child, child)))
    assert claim.id == parent
    assert [await tag_of(store, task_id) for task_id in verdict.child_ids] == [1, 1 + STEP]


async def test_a_tag_does_not_grow_for_ever(store: Store) -> None:
    first, second = await add_many(store, 2, fair_key="a", fair_step=LAST_TAG)
    (third,) = await put(store, "a")
    assert [await tag_of(store, task_id) for task_id in (first, second, third)] == [1, LAST_TAG, LAST_TAG]


# ---------------------------------------------------------------- other kinds, queues and requirements


async def test_other_kinds_get_as_many_starts_as_by_age(store: Store, worker: Worker) -> None:
    await put(store, "a", 4)
    await add_many(store, 4, kind="other")
    await put(store, "a", 4)
    await put(store, "b", 4)
    other = KindRequest(kind="other", count=100)
    claims = await worker.claim_kinds(FAIR, other, limit=16)
    assert await tenants_of(store, ids_of(claims)) == "abab" + "----" + "ababaaaa"


async def test_a_newcomer_takes_places_of_its_kind_and_not_of_others(store: Store, worker: Worker) -> None:
    await put(store, "a", 10)
    await add_many(store, 20, kind="other")
    await put(store, "b", 10)
    other = KindRequest(kind="other", count=100)
    claims = await worker.claim_kinds(FAIR, other, limit=20)
    assert await tenants_of(store, ids_of(claims)) == "ab" * 5 + "-" * 10


async def test_a_newcomer_does_not_put_an_older_tenant_behind_other_kinds(store: Store, worker: Worker) -> None:
    await put(store, "a", 10)
    await add_many(store, 10, kind="other")
    await put(store, "b", 10)
    assert await taken(store, worker, 30, KindRequest(kind="other", count=1)) == "ab" * 9 + "a" + "-" * 10 + "b"


async def test_tasks_that_cannot_run_make_their_kind_no_older(store: Store, worker: Worker) -> None:
    await put(store, "a", 5, requirements=demands("elsewhere"))
    await put(store, "a", 5, queue="paused")
    await store.pause(["paused"])
    await add_many(store, 5, kind="other")
    await put(store, "b", 5)
    assert await taken(store, worker, 10, KindRequest(kind="other", count=1)) == "-" * 5 + "b" * 5


async def test_turns_hold_across_queues_and_requirements(store: Store, worker: Worker) -> None:
    for queue in ("x", "y"):
        for requirements in ("", demands(cpu=1)):
            await put(store, "a", 3, queue=queue, requirements=requirements)
    await put(store, "b", 6, queue="y")
    claims = await worker.claim_kinds(FAIR, limit=12, **machine(cpu=100))
    assert await tenants_of(store, ids_of(claims)) == "ab" * 6


async def test_positions_are_told_by_turn(store: Store, worker: Worker) -> None:
    mine = await put(store, "a", 5)
    await put(store, "b", 3)
    await add(store)
    assert await store.ahead(mine[2], 1000) == 5
    assert await store.fair_ahead(mine[2], 1000) == {"a": 2, "b": 2}
    assert await store.fair_ahead(mine[4], 1000) == {"a": 4, "b": 3}
    (claim,) = await worker.claim_kinds(FAIR, limit=1)
    assert await store.fair_ahead(claim.id, 1000) == {}


async def test_candidates_are_read_by_turn_from_page_to_page(store: Store) -> None:
    await put(store, "a", 10)
    await put(store, "b", 5, queue="y")
    await put(store, "c", 5, priority=1)
    seen: list[int] = []
    after: tuple[int, int, int] | None = None
    while page := await store.read_candidates(CandidateQuery(kind_request=FAIR, after=after, limit=3)):
        seen += [record.id for record in page]
        after = (page[-1].priority, page[-1].fair_tag, page[-1].id)
    assert await tenants_of(store, seen) == "ccccc" + "ab" * 5 + "aaaaa"


# ---------------------------------------------------------------- at the same time


async def test_producers_that_insert_at_once_lose_nothing(store: Store, worker: Worker) -> None:
    ids = {task_id for some in await asyncio.gather(*(put(store, "a", 5) for _ in range(20))) for task_id in some}
    assert len(ids) == 100
    assert all([await tag_of(store, task_id) > 0 for task_id in ids])
    assert {*ids_of(await worker.claim_kinds(FAIR, limit=1000))} == ids


# ---------------------------------------------------------------- whatever happens


class Oracle:
    """The turns, in plain dicts: slow, and obviously right."""

    def __init__(self) -> None:
        self.ready: dict[int, tuple[str, int, int]] = {}
        """Tenant, priority and tag of each ready task."""
        self.running: dict[int, tuple[str, int, int]] = {}
        """Those of tasks that run, or wait for a retry."""
        self.queues: dict[int, str] = {}
        self.paused: set[str] = set()

    def put(self, task_id: int, tenant: str, priority: int, step: int) -> None:
        ready = [
            tag
            for its_id, (_, its_priority, tag) in self.ready.items()
            if its_priority == priority and self.queues[its_id] not in self.paused
        ]
        mine = [
            tag
            for its_tenant, its_priority, tag in (*self.ready.values(), *self.running.values())
            if (its_tenant, its_priority) == (tenant, priority)
        ]
        start = min(ready) if ready else self._last_start(priority)
        self.ready[task_id] = tenant, priority, max(start, max(mine) + step) if mine else start

    def _last_start(self, priority: int) -> int:
        """The present turn while no task is ready in a queue that is not paused."""
        waiting = [tag for _, its_priority, tag in self.ready.values() if its_priority == priority]
        running = [tag for _, its_priority, tag in self.running.values() if its_priority == priority]
        return max(min(waiting, default=1), max(running, default=1))

    def first(self, number: int) -> list[int]:
        def position(task_id: int) -> tuple[int, int, int]:
            _, priority, tag = self.ready[task_id]
            return -priority, tag, task_id

        claimable = [task_id for task_id in self.ready if self.queues[task_id] not in self.paused]
        return sorted(claimable, key=position)[:number]

    def start(self, ids: Sequence[int]) -> None:
        for task_id in ids:
            self.running[task_id] = self.ready.pop(task_id)


STEPS = {"a": STEP, "b": STEP // 3, "c": STEP * 5}
moves = st.one_of(
    st.tuples(
        st.just("put"), st.sampled_from("abc"), st.integers(1, 6), st.sampled_from([0, 0, 1]), st.sampled_from("xy")
    ),
    st.tuples(st.sampled_from(["pause", "resume"]), st.sampled_from("xy")),
    st.tuples(st.just("start"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["succeed", "retry", "snooze", "cancel", "raise"]), st.integers(0, 20)),
)


@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres"])
@given(script=st.lists(moves, min_size=1, max_size=25))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tags_and_claims_are_those_of_the_oracle(name: str, script: list[tuple[Any, ...]]) -> None:
    asyncio.run(follow(name, script))


async def follow(name: str, script: list[tuple[Any, ...]]) -> None:
    with make_folder() as folder:
        store = make_store(name, folder)
        await store.open()
        try:
            await play(store, script)
        finally:
            await store.close()


async def play(store: Store, script: list[tuple[Any, ...]]) -> None:
    worker, oracle = await Worker.start(store), Oracle()
    claims: dict[int, Any] = {}
    for move in script:
        match move:
            case ("put", tenant, number, priority, queue):
                for task_id in await add_many(
                    store, number, fair_key=tenant, fair_step=STEPS[tenant], priority=priority, queue=queue
                ):
                    oracle.queues[task_id] = queue
                    oracle.put(task_id, tenant, priority, STEPS[tenant])
            case ("start", number):
                expected = oracle.first(number)
                found = await worker.claim_kinds(FAIR, limit=number)
                assert ids_of(found) == expected
                oracle.start(expected)
                claims.update({claim.id: claim for claim in found})
            case ("pause", queue):
                await store.pause([queue])
                oracle.paused.add(queue)
            case ("resume", queue):
                await store.resume([queue])
                oracle.paused.discard(queue)
            case (("succeed" | "retry" | "snooze") as verb, pick) if claims:
                task_id = sorted(claims)[pick % len(claims)]
                outcome = {"succeed": "succeeded", "retry": "retrying at once", "snooze": "snoozed"}[verb]
                await worker.finish(claims.pop(task_id), OUTCOMES[outcome])
                if verb == "succeed":
                    del oracle.running[task_id]
                elif verb == "retry":
                    oracle.ready[task_id] = oracle.running.pop(task_id)
            case ("cancel", pick) if oracle.ready:
                task_id = sorted(oracle.ready)[pick % len(oracle.ready)]
                await store.cancel([task_id])
                del oracle.ready[task_id]
            case ("raise", pick) if oracle.ready:
                task_id = sorted(oracle.ready)[pick % len(oracle.ready)]
                await store.set_priority([Reprioritizing(id=task_id, priority=1)])
                tenant, priority, _ = oracle.ready[task_id]
                if priority != 1:
                    del oracle.ready[task_id]
                    oracle.put(task_id, tenant, 1, STEPS[tenant])
        ready = {record.id: record for record in await store.get(list(oracle.ready)) if record is not None}
        assert {task_id: record.fair_tag for task_id, record in ready.items()} == {
            task_id: tag for task_id, (_, _, tag) in oracle.ready.items()
        }
