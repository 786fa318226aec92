"""`exchange` ends tasks and claims the next ones: what `finish` and `claim` promise, in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    ERROR,
    HOUR,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    amounts,
    declare_limit,
    demands,
    pass_lease,
    pass_time,
    pool,
    read,
    settlement_of,
    states,
)
from tests.stores.relay import KEYED, LICENSED, SERVED, SORTS, Relay, succeeded

from synergon.errors import LeaseLost
from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit, NewProvider, NewRate, NewServer
from synergon.model.operator_actions import NewAction
from synergon.model.outcomes import FencedOutcome, KeyAssigned, Retrying, Succeeded, Verdict
from synergon.model.requirements import PROCESS, UNIT, parse_requirements
from synergon.model.tasks import NewTask
from synergon.stores.base import Store

OTHER: Final = replace(LICENSED, kind="other")
COMMANDS: Final = KindRequest(kind="stop", count=1, provider="gpu", is_command=True)
WEB: Final = KindRequest(kind="web", count=3, provider="web")
EACH_SORT: Final = pytest.mark.parametrize("sort", SORTS)
OF_KEYS: Final = pytest.mark.parametrize("sort", [sort for sort in SORTS if "key" in sort])
OF_OTHERS: Final = pytest.mark.parametrize("sort", ["a limit", "a server"])


# ---------------------------------------------------------------- the next task


@EACH_SORT
async def test_the_next_task_starts_with_the_same_call(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    first = await add(store, kind=relay.kind.kind, priority=1, limit_key=relay.claim.limit_key)
    for expected in (first, *relay.ids[1:]):
        before = relay.claim
        verdict, claims = await relay.exchange()
        assert verdict == Verdict(before.id, State.SUCCEEDED, (), relay.kind.kind)
        (relay.claim,) = claims
        claim = relay.claim
        assert (claim.id, claim.claim_no, claim.attempts) == (expected, 1, 1)
        assert (claim.server, claim.slot, claim.limit_key) == (before.server, before.slot, before.limit_key)
        record = await read(store, expected)
        assert (record.state, record.node_id) == (State.RUNNING, relay.worker.node_id)
        assert (await read(store, before.id)).result == 42
    assert await relay.next() == [], "none is left"
    assert await states(store, [first, *relay.ids]) == [State.SUCCEEDED] * 4


@EACH_SORT
async def test_permits_are_counted_as_after_finish_and_claim(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    assert await relay.next() == relay.ids[1:2]
    assert await relay.worker.claim_kinds(relay.kind) == [], "there is one permit, and it is taken"
    used = {limit.name: limit.in_use for limit in await store.limits()} | {
        server.address: server.in_use for server in await store.servers()
    }
    names = {"limit": "license", "server": "a", "key": "key:keyed"}
    assert used == {name: int(word in sort) for word, name in names.items()}


async def test_an_exchange_without_outcomes_is_a_claim(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    request = ClaimRequest(node_id=worker.node_id, kinds=(KindRequest(kind="work", count=1),), limit=1)
    verdicts, claims = await store.exchange([], request)
    assert (verdicts, [claim.id for claim in claims]) == ([], [task_id])


async def test_outcomes_of_kinds_without_permits_are_written_too(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 4)
    claims = await worker.claim(limit=2)
    request = ClaimRequest(node_id=worker.node_id, kinds=(KindRequest(kind="work", count=9),), limit=9)
    verdicts, taken = await store.exchange([succeeded(claim) for claim in claims], request)
    assert [(verdict.id, verdict.state) for verdict in verdicts] == [(one, State.SUCCEEDED) for one in ids[:2]]
    assert [claim.id for claim in taken] == ids[2:]


@EACH_SORT
@pytest.mark.parametrize("name", [name for name in OUTCOMES if name != "succeeded"])
async def test_every_outcome_frees_its_permit_for_the_claim(store: Store, sort: str, name: str) -> None:
    relay = await Relay.begin(store, SORTS[sort], number=2)
    server = ("gpu", relay.claim.server) if relay.claim.server is not None else None
    outcome = settlement_of(relay.claim, OUTCOMES[name], server=server, slot=relay.claim.slot)
    processes = {PROCESS: 9 * UNIT}  # which a task that has crashed needs
    (verdict,), claims = await store.exchange([outcome], relay.request(totals=processes, free=processes))
    returns = name in ("handed back", "retrying at once", "server failed") or (
        name == "crashed" and relay.kind.kind == "keyed"
    )
    assert [claim.id for claim in claims] == (relay.ids[:1] if returns else relay.ids[1:]), "it is the first again"
    assert verdict.kind == relay.kind.kind
    assert verdict.state is {
        "failed": State.FAILED,
        "retrying": State.SCHEDULED,
        "snoozed": State.SCHEDULED,
        "cancelled": State.CANCELLED,
    }.get(name, State.READY)


# ---------------------------------------------------------------- what a claim may not take


Spoil = Callable[[Relay], Awaitable[Any]]


async def lower_the_limit(relay: Relay) -> None:
    await relay.store.set_limit("license", 0)
    await relay.store.set_limit("key:keyed", 0)
    await relay.store.set_servers("gpu", pool(a=0))


async def pause_the_queue(relay: Relay) -> None:
    await relay.store.pause(["default"])


async def cordon_the_node(relay: Relay) -> None:
    await relay.store.act(NewAction(verb="cordon", subject=relay.worker.node_id, who="ada"))


async def cancel_the_others(relay: Relay) -> None:
    await relay.store.cancel(relay.ids[1:])


@EACH_SORT
@pytest.mark.parametrize("spoil", [lower_the_limit, pause_the_queue, cordon_the_node, cancel_the_others])
async def test_where_nothing_may_start_the_outcome_is_written_all_the_same(
    store: Store, sort: str, spoil: Spoil
) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    await spoil(relay)
    verdict, claims = await relay.exchange()
    assert (verdict.state, list(claims)) == (State.SUCCEEDED, [])
    assert claims.is_cordoned == (spoil is cordon_the_node)
    assert (await states(store, relay.ids))[0] is State.SUCCEEDED


@EACH_SORT
async def test_a_node_without_free_slots_claims_nothing(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    assert await relay.next(limit=0) == []


@EACH_SORT
async def test_queues_that_the_node_does_not_serve_are_left_alone(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort], number=1)
    elsewhere = await add(store, kind=relay.kind.kind, queue="elsewhere", priority=1, limit_key=relay.claim.limit_key)
    here = await add(store, kind=relay.kind.kind, limit_key=relay.claim.limit_key)
    # A key queue goes on with its first task, on whichever node that can run.
    expected = [] if relay.kind.kind == "keyed" else [here]
    assert await relay.next(queues=frozenset({"default"})) == expected
    assert (await read(store, elsewhere)).state is State.READY


@EACH_SORT
async def test_requirements_of_a_task_are_weighed(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    cpu = {"cpu": 10**6}
    heavy = await add(
        store, kind=relay.kind.kind, priority=1, requirements=demands(cpu=1), limit_key=relay.claim.limit_key
    )
    assert await relay.next(totals=cpu, free=cpu) == [heavy]


@OF_OTHERS
async def test_a_task_that_does_not_fit_is_passed_over(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    await add(store, kind=relay.kind.kind, priority=1, requirements=demands(cpu=2))
    await add(store, kind=relay.kind.kind, priority=1, requirements=demands("gpu"))
    cpu = {"cpu": 10**6}
    assert await relay.next(totals=cpu, free=cpu) == relay.ids[1:2]


async def test_a_task_that_fits_later_is_told(store: Store) -> None:
    relay = await Relay.begin(store, LICENSED, number=1)
    await add(store, kind="licensed", requirements=demands(cpu=1))
    _, claims = await relay.exchange(totals=amounts(cpu=1), free=amounts(cpu=0))
    assert list(claims) == []
    assert claims.unfit == {"licensed"}


@EACH_SORT
async def test_expired_tasks_do_not_start(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort], number=1)
    await add(store, kind=relay.kind.kind, expires_in=1, limit_key=relay.claim.limit_key)
    await pass_time(store, 10)
    assert await relay.next() == []


async def test_capacity_is_reserved_by_the_claim_of_an_exchange(store: Store) -> None:
    relay = await Relay.begin(store, LICENSED, number=2)
    old = await add(store, kind="big", requirements=demands(cpu=2), priority=1)
    await pass_time(store, 10)
    big = KindRequest(kind="big", count=1)
    _, claims = await relay.exchange(
        big,
        LICENSED,
        totals=amounts(cpu=2),
        free=amounts(cpu=1),
        patience=1,
        reserve_microseconds=HOUR,
        shares=(amounts(cpu=1),),
    )
    assert claims.reserved is not None
    assert (claims.reserved.id, (await read(store, old)).state) == (old, State.READY)


# ---------------------------------------------------------------- kinds


async def test_of_kinds_that_need_the_same_permit_the_first_task_starts(store: Store) -> None:
    relay = await Relay.begin(store, LICENSED)
    last, former = replace(OTHER, kind="last", rank=1), replace(OTHER, kind="former", rank=-1)
    of_last, of_former, of_other = [await add(store, kind=kind) for kind in ("last", "former", "other")]
    better = await add(store, kind="last", priority=1)
    for expected in (better, of_former, *relay.ids[1:], of_other, of_last):
        assert await relay.next(LICENSED, OTHER, last, former) == [expected]


@pytest.mark.parametrize(
    "other",
    [
        replace(OTHER, limits=("license", "more")),
        replace(OTHER, limits=()),
        replace(OTHER, provider="gpu"),
        replace(OTHER, is_urgent=True),
        replace(OTHER, is_rated=True),
        replace(OTHER, requirements=parse_requirements(demands(cpu=1))),
    ],
)
async def test_a_kind_that_needs_something_else_as_well_is_weighed(store: Store, other: KindRequest) -> None:
    relay = await Relay.begin(store, LICENSED)
    await declare_limit(store, "more", 1)
    better = await add(store, kind="other", priority=1)
    found = await relay.next(LICENSED, other, totals=amounts(cpu=1), free=amounts(cpu=1))
    assert found == [better, *(relay.ids[1:2] if not other.limits else [])]


@pytest.mark.parametrize("lacking", ["more", "gpu"])
async def test_a_task_without_a_second_permit_leaves_the_first_to_others(store: Store, lacking: str) -> None:
    relay = await Relay.begin(store, LICENSED)
    await declare_limit(store, "more", 0)
    await store.set_servers("gpu", pool(a=0))
    await add(store, kind="other", priority=1)
    other = replace(OTHER, limits=("license", "more")) if lacking == "more" else replace(OTHER, provider="gpu")
    assert await relay.next(LICENSED, other) == relay.ids[1:2]


async def test_an_urgent_kind_goes_first_whatever_its_priority(store: Store) -> None:
    relay = await Relay.begin(store, LICENSED)
    urgent = await add(store, kind="other", priority=-1)
    assert await relay.next(LICENSED, replace(OTHER, is_urgent=True)) == [urgent]


async def test_outcomes_and_claims_may_be_of_different_kinds(store: Store) -> None:
    relay = await Relay.begin(store, LICENSED)
    other = await add(store, kind="other")
    assert await relay.next(OTHER) == [other], "its own kind was not asked for"


async def test_one_exchange_ends_tasks_of_many_kinds(store: Store) -> None:
    worker = await Worker.start(store)
    kinds = (LICENSED, replace(SERVED, count=3), KEYED, KindRequest(kind="free", count=1))
    await declare_limit(store, "license", 1)
    await declare_limit(store, "key:keyed", 1)
    await store.declare([], [NewProvider(name="gpu", servers=pool(a=1))])
    ids = {kind.kind: await add_many(store, 2, kind=kind.kind, limit_key=key_of(kind)) for kind in kinds}
    claims = await worker.claim_kinds(*kinds)
    assert sorted(claim.id for claim in claims) == sorted(first for first, _ in ids.values())
    request = ClaimRequest(node_id=worker.node_id, kinds=kinds, limit=9)
    verdicts, taken = await store.exchange([succeeded(claim) for claim in claims], request)
    assert [verdict.id for verdict in verdicts] == [claim.id for claim in claims], "in the order of the outcomes"
    assert {verdict.state for verdict in verdicts} == {State.SUCCEEDED}
    assert sorted(claim.id for claim in taken) == sorted(second for _, second in ids.values())


def key_of(kind: KindRequest) -> str | None:
    return "one" if kind.kind == "keyed" else None


# ---------------------------------------------------------------- servers


async def test_a_command_goes_before(store: Store) -> None:
    relay = await Relay.begin(store, SERVED)
    command = await add(store, kind="stop", is_command=True, provider="gpu", target="a")
    assert await relay.next(SERVED, COMMANDS) == [command]


async def test_a_command_ends_and_the_next_task_starts(store: Store) -> None:
    relay = await Relay.begin(store, SERVED)
    await add(store, kind="stop", is_command=True, provider="gpu", target="a")
    await relay.next(SERVED, COMMANDS)
    assert await relay.next(SERVED, COMMANDS) == relay.ids[1:2]


async def test_a_task_for_another_server_is_not_given_this_one(store: Store) -> None:
    relay = await Relay.begin(store, SERVED, number=2)
    await store.set_servers("gpu", pool(a=1, b=0))
    await add(store, kind="served", priority=1, target="b", provider="gpu")
    assert await relay.next() == relay.ids[1:]


async def test_a_retry_is_not_given_the_server_that_failed_it_if_there_is_another(store: Store) -> None:
    relay = await Relay.begin(store, SERVED, number=1)
    await store.set_servers("gpu", pool(a=1, b=1))
    retrying = settlement_of(relay.claim, Retrying(delay=0, error=ERROR), server=("gpu", "a"), slot=relay.claim.slot)
    (verdict,), (claim,) = await store.exchange([retrying], relay.request())
    assert (verdict.state, claim.id, claim.server) == (State.READY, relay.ids[0], "b")


async def test_a_server_that_has_left_the_pool_gets_no_more(store: Store) -> None:
    relay = await Relay.begin(store, SERVED)
    await store.set_servers("gpu", pool(b=1))
    assert await relay.next() == relay.ids[1:2]
    assert relay.claim.server == "b"


def failed(claim: Claim) -> FencedOutcome:
    return settlement_of(claim, OUTCOMES["failed"], server=("gpu", "a"), is_server_well=False, slot=claim.slot)


async def test_a_server_that_begins_to_rest_with_this_outcome_gets_no_task(store: Store) -> None:
    relay = await Relay.begin(store, SERVED)
    await store.declare(
        [], [NewProvider(name="gpu", servers=pool(a=1), backoff_after=1, backoff_first=HOUR, backoff_cap=HOUR)]
    )
    (verdict,), claims = await store.exchange([failed(relay.claim)], relay.request())
    assert (verdict.state, list(claims)) == (State.FAILED, [])
    (server,) = await store.servers()
    assert (server.failures, server.backs_off_until is not None) == (1, True)


async def test_a_server_that_passes_its_trial_with_this_outcome_gets_the_next_tasks(store: Store) -> None:
    relay = await Relay.begin(store, SERVED)
    rest = 10 * MILLISECOND
    await store.declare(
        [], [NewProvider(name="gpu", servers=pool(a=2), backoff_after=1, backoff_first=rest, backoff_cap=rest)]
    )
    await store.finish([failed(relay.claim)])
    await pass_time(store, rest)
    (relay.claim,) = await relay.worker.claim_kinds(SERVED)
    assert await relay.worker.claim_kinds(SERVED) == [], "it is on trial"
    assert len(await relay.next()) == 1
    (server,) = await store.servers()
    assert (server.failures, server.backs_off_until) == (0, None)


async def test_a_limit_that_is_held_by_way_of_servers_is_counted_with_them(store: Store) -> None:
    relay = await Relay.begin(store, LICENSED)
    await store.set_servers("gpu", [replace(server, address="http://license/gpu") for server in pool(a=1)])
    await store.set_limit("license", 2)
    await add(store, kind="served")
    (served,) = await relay.worker.claim_kinds(SERVED)
    await store.set_limit("license", 1)
    assert served.server == "http://license/gpu"
    assert await relay.next() == []


def below(*paths: str) -> list[NewServer]:
    """Servers with five permits each, below a host."""
    return [NewServer(address=f"http://host/{path}", capacity=5) for path in paths]


async def begin_below(store: Store, *paths: str, prefix: str = "http://host", most: int = 1) -> Relay:
    """One task runs on one of these servers, and a limit covers them."""
    relay = await Relay.begin(store, SERVED, number=20)
    await store.finish([relay.outcome])
    await store.set_servers("gpu", below(*paths))
    await declare_limit(store, prefix, most)
    (relay.claim,) = await relay.worker.claim_kinds(replace(SERVED, count=1))
    return relay


@pytest.mark.parametrize("prefix", ["host", "http://host", "host:80", "http://host:80/one", "http://host/one"])
async def test_a_limit_that_covers_the_server_is_kept(store: Store, prefix: str) -> None:
    relay = await begin_below(store, "one", prefix=prefix)
    assert await relay.next() == relay.ids[2:3]
    assert relay.claim.server == "http://host/one"
    assert await relay.worker.claim_kinds(SERVED) == [], "there is one permit, and it is taken"
    await store.set_limit(prefix, 0)
    assert await relay.next() == []
    await store.set_limit(prefix, 1)
    assert len(await relay.worker.claim_kinds(SERVED)) == 1


async def test_tasks_of_another_provider_below_the_same_limit_may_go_first(store: Store) -> None:
    relay = await begin_below(store, "one")
    await store.declare([], [NewProvider(name="web", servers=tuple(below("web")))])
    await add(store, kind="web", priority=-1, provider="web")
    assert await relay.next(SERVED, WEB) == relay.ids[2:3]
    better = await add(store, kind="web", priority=1, provider="web")
    assert await relay.next(SERVED, WEB) == [better]


async def test_tasks_of_a_provider_that_shares_nothing_start_beside_it(store: Store) -> None:
    relay = await begin_below(store, "one")
    await store.declare([], [NewProvider(name="web", servers=pool(**{"http://elsewhere/web": 1}))])
    web = await add(store, kind="web", priority=1, provider="web")
    assert await relay.next(SERVED, WEB) == [web, relay.ids[2]]


@pytest.mark.parametrize("prefix", ["http://host", "http://elsewhere"])
async def test_a_server_with_more_free_permits_is_preferred(store: Store, prefix: str) -> None:
    relay = await begin_below(store, "one", most=2, prefix=prefix)
    held = await relay.worker.claim_kinds(replace(SERVED, count=1))
    assert [claim.server for claim in held] == ["http://host/one"]
    await store.set_servers("gpu", below("one", "two"))
    await relay.next(replace(SERVED, count=1))
    assert relay.claim.server == "http://host/two"


async def test_equal_servers_take_turns_in_the_long_run(store: Store) -> None:
    relay = await begin_below(store, "one", "two")
    seen: Counter[str | None] = Counter()
    await add_many(store, 200, kind="served")
    while len(seen) < 2 and seen.total() < 200:
        seen[relay.claim.server] += 1
        await relay.next(replace(SERVED, count=1))
    assert seen.keys() == {"http://host/one", "http://host/two"}


# ---------------------------------------------------------------- key queues


class Crowd:
    """Three key queues, two tasks of each run on this node."""

    def __init__(self, store: Store, worker: Worker, claims: Claims, ids: list[int]) -> None:
        self.store = store
        self.worker = worker
        self.claims = claims
        self.waiting = ids[len(claims) :]

    @classmethod
    async def begin(cls, store: Store, number: int = 4) -> Crowd:
        await declare_limit(store, "key:keyed", 2)
        tasks = [NewTask(kind="keyed", limit_key=key) for _ in range(number) for key in ("a", "b", "c")]
        ids = [insertion.id for insertion in await store.insert(tasks)]
        worker = await Worker.start(store)
        return cls(store, worker, await worker.claim_kinds(replace(KEYED, count=100)), ids)

    def of(self, key: str) -> list[Claim]:
        return [claim for claim in self.claims if claim.limit_key == key]

    async def exchange(self, claims: list[Claim] | None = None, *kinds: KindRequest, **more: Any) -> list[int]:
        """End these with success; the tasks that start with the same call."""
        fields = {"kinds": kinds or (replace(KEYED, count=100),), "limit": 100, **more}
        request = ClaimRequest(node_id=self.worker.node_id, **fields)
        outcomes = [succeeded(claim) for claim in (self.claims if claims is None else claims)]
        verdicts, taken = await self.store.exchange(outcomes, request)
        assert {verdict.state for verdict in verdicts} == {State.SUCCEEDED}
        return [claim.id for claim in taken]


async def test_the_next_of_each_key_queue_start_with_the_same_call(store: Store) -> None:
    crowd = await Crowd.begin(store)
    assert len(crowd.claims) == 6
    assert await crowd.exchange() == crowd.waiting
    assert await states(store, crowd.waiting) == [State.RUNNING] * 6


async def test_a_ready_task_that_is_before_them_in_order_goes_first(store: Store) -> None:
    crowd = await Crowd.begin(store)
    later = await add(store, kind="keyed", limit_key="d")
    better = await add(store, kind="keyed", limit_key="e", priority=1)
    first, *others = crowd.waiting
    assert await crowd.exchange(limit=2) == [better, first]
    assert await states(store, [*others, later]) == [State.READY] * 6


@pytest.mark.parametrize("what", ["requirements", "another queue"])
async def test_a_task_that_cannot_run_here_is_ready_for_others(store: Store, what: str) -> None:
    crowd = await Crowd.begin(store, number=2)
    fields: dict[str, Any] = {"queue": "another"} if what == "another queue" else {"requirements": demands(cpu=1)}
    follower = await add(store, kind="keyed", limit_key="a", **fields)
    assert await crowd.exchange(queues=frozenset({"default"})) == []
    assert await states(store, [follower]) == [State.READY]


async def test_a_task_in_a_paused_queue_is_passed_over(store: Store) -> None:
    crowd = await Crowd.begin(store, number=2)
    paused = await add(store, kind="keyed", limit_key="a", queue="closed")
    behind = await add(store, kind="keyed", limit_key="a")
    await store.pause(["closed"])
    assert await crowd.exchange() == [behind]
    assert await states(store, [paused]) == [State.WAITING]
    await store.resume(["closed"])
    assert await states(store, [paused]) == [State.READY]


async def test_a_lowered_limit_is_not_exceeded_and_a_raised_one_is_used(store: Store) -> None:
    crowd = await Crowd.begin(store)
    of_a, of_b = crowd.of("a"), crowd.of("b")
    await store.set_limit("key:keyed", 1)
    assert await crowd.exchange(of_a[:1]) == [], "there is one too many yet"
    assert await crowd.exchange(of_a[1:]) == crowd.waiting[:1]
    await store.set_limit("key:keyed", 3)
    assert await crowd.exchange(of_b) == crowd.waiting[1:5], "one of each had room, and one follows in its own"


async def test_a_key_queue_with_a_rate_waits_for_its_moment(store: Store) -> None:
    crowd = await Crowd.begin(store)
    rate = NewRate(per=HOUR, burst=1)
    await store.declare([NewLimit(name="key:keyed", value=2, rate=rate)], [])
    rated = replace(KEYED, count=100, is_rated=True)
    first_ones = crowd.waiting[:3]
    assert await crowd.exchange(None, rated) == first_ones, "one of each key, as the burst allows"
    claims = [replace(claim, id=task_id) for claim, task_id in zip(crowd.claims, first_ones, strict=False)]
    assert await crowd.exchange(claims, rated) == []


async def test_starts_are_charged_to_the_rate(store: Store) -> None:
    relay = await Relay.begin(store, KEYED, number=4)
    await store.declare([NewLimit(name="key:keyed", value=1, rate=NewRate(per=HOUR, burst=2))], [])
    rated = replace(KEYED, is_rated=True)
    before = await store.next_start("keyed", "one")
    started = await relay.next(rated)
    assert started == relay.ids[1:2]
    assert await store.next_start("keyed", "one") != before
    while started:
        started = await relay.next(rated)
    assert (await states(store, relay.ids)).count(State.SUCCEEDED) < 4, "the rate holds the last ones back"


@OF_KEYS
async def test_one_of_another_key_queue_that_is_before_it_starts(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    other = await add(store, kind="keyed", limit_key="other", priority=1)
    expected = [other] if sort != "a key queue" else [relay.ids[1]]
    if sort == "a key queue":
        (claim,) = await relay.worker.claim_kinds(KEYED)
        assert claim.id == other, "it had a permit of its own"
    assert await relay.next() == expected


@OF_KEYS
async def test_a_task_that_gets_its_key_late_joins_the_queue(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort], number=1)
    waiting = await add(store, kind="keyed", limit_key="two")
    await declare_limit(store, "license", 2)
    await store.set_servers("gpu", pool(a=2))
    (held,) = await relay.worker.claim_kinds(relay.kind)
    assert held.id == waiting
    assigned = settlement_of(relay.claim, KeyAssigned(limit_key="two"))
    (verdict,), claims = await store.exchange([assigned], relay.request())
    assert (verdict.state, list(claims)) == (State.WAITING, [])
    assert (await read(store, relay.claim.id)).limit_key == "two"


# ---------------------------------------------------------------- the fence


@EACH_SORT
async def test_a_stale_outcome_frees_nothing(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    stale = replace(relay.outcome, claim_no=relay.claim.claim_no + 1)
    (verdict,), claims = await store.exchange([stale], relay.request())
    assert (verdict.state, list(claims)) == (None, [])
    assert (await states(store, relay.ids))[:1] == [State.RUNNING]


@EACH_SORT
async def test_an_outcome_that_is_sent_again_has_its_verdict_again_and_frees_nothing_more(
    store: Store, sort: str
) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    outcome = relay.outcome
    assert await relay.next() == relay.ids[1:2]
    (verdict,), claims = await store.exchange([outcome], relay.request())
    assert (verdict.state, list(claims)) == (State.SUCCEEDED, [])
    (again,) = await store.finish([outcome])
    assert again.state is State.SUCCEEDED
    assert (await states(store, relay.ids))[:2] == [State.SUCCEEDED, State.RUNNING]


@EACH_SORT
async def test_an_outcome_that_stands_twice_in_one_exchange_counts_once(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    verdicts, claims = await store.exchange([relay.outcome, relay.outcome], relay.request())
    assert [verdict.state for verdict in verdicts] == [State.SUCCEEDED] * 2
    assert [claim.id for claim in claims] == relay.ids[1:2]


@EACH_SORT
async def test_the_claim_after_a_lost_answer_of_a_retry_is_not_ended_by_its_repetition(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort], number=1)
    outcome = settlement_of(relay.claim, OUTCOMES["handed back"])
    _, (claim,) = await store.exchange([outcome], relay.request())
    assert (claim.id, claim.claim_no) == (relay.claim.id, 2)
    (verdict,), claims = await store.exchange([outcome], relay.request())
    assert (verdict.state, list(claims)) == (State.READY, [])
    assert await states(store, relay.ids) == [State.RUNNING]


@EACH_SORT
async def test_a_task_with_a_cancel_request_ends_cancelled(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    await store.cancel([relay.claim.id])
    verdict, claims = await relay.exchange()
    assert verdict.state is State.CANCELLED
    assert [claim.id for claim in claims] == relay.ids[1:2]


# ---------------------------------------------------------------- follow-ups


@EACH_SORT
async def test_children_are_stored_and_may_start_with_the_same_call(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort], number=1)
    child = NewTask(kind=relay.kind.kind, limit_key=relay.claim.limit_key)
    outcome = replace(relay.outcome, outcome=Succeeded(result=b"1", children=(child, NewTask(kind="later"))))
    (verdict,), (claim,) = await store.exchange([outcome], relay.request())
    assert verdict.state is State.SUCCEEDED
    assert verdict.child_ids[:1] == (claim.id,)
    (again,) = await store.finish([outcome])
    assert again.state is State.SUCCEEDED
    assert await states(store, verdict.child_ids) == [State.RUNNING, State.READY], "they were not stored twice"


@EACH_SORT
async def test_the_end_of_a_group_releases_its_follower_to_the_same_claim(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, SORTS[sort], number=1)
    key = relay.claim.limit_key
    await store.finish([relay.outcome])
    task = NewTask(kind=relay.kind.kind, limit_key=key)
    group = await store.open_group(NewGroup(name="group", tasks=(task,), then=task))
    assert group.then is not None
    (relay.claim,) = await relay.worker.claim_kinds(relay.kind)
    verdict, claims = await relay.exchange()
    assert (verdict.state, verdict.released) == (State.SUCCEEDED, (relay.kind.kind,))
    assert [claim.id for claim in claims] == [group.then.id]
    (ended,) = await store.groups([group.id])
    assert ended is not None
    assert ended.ended_at is not None


# ---------------------------------------------------------------- an exchange that fails


@EACH_SORT
@pytest.mark.parametrize("is_known", [True, False])
async def test_without_a_lease_neither_happens(store: Store, sort: str, is_known: bool) -> None:
    relay = await Relay.begin(store, SORTS[sort])
    await store.unregister(relay.worker.node_id)
    if is_known:
        await Worker.start(store, relay.worker.node_id, lease=1)
        await pass_lease(store, relay.worker.node_id)
    with pytest.raises(LeaseLost):
        await relay.exchange()
    if not is_distributed(store):
        assert (await states(store, relay.ids))[0] is State.RUNNING, "all or nothing"
    (verdict,) = await store.finish([relay.outcome])
    assert verdict.state is State.SUCCEEDED, "the outcome can be written by itself"


def is_distributed(store: Store) -> bool:
    """It has no transaction for both: the answer of the first is lost then."""
    return "profile=distributed" in getattr(store, "url", "")
