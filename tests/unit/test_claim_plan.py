"""The claim planner agrees with a brute-force chooser that counts everything anew for each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.limits import NewRate
from synergon.model.requirements import NO_REQUIREMENTS, Requirements, make_requirements
from synergon.options.addresses import covers
from synergon.stores.rules.claim_plan import ReadyTask, choose, server_to_avoid
from synergon.stores.rules.rates import RateMeter
from synergon.stores.rules.shared_capacity import HeldPermits, ServerCapacity, SharedCapacity

NOW = 1_000_000
SERVERS = ("http://a.example/1", "http://a.example/2", "http://b.example")
PREFIX = "http://a.example"
LIMITS = ("one", "two")
BIG, SMALL = (make_requirements({"cpu": amount}, frozenset(), frozenset()) for amount in (4, 1))
TEXTS: dict[str, Requirements] = {"": NO_REQUIREMENTS, SMALL.text: SMALL, BIG.text: BIG}


def kind_requests() -> st.SearchStrategy[tuple[KindRequest, ...]]:
    def of(kind: str) -> st.SearchStrategy[KindRequest]:
        return st.builds(
            KindRequest,
            kind=st.just(kind),
            count=st.integers(0, 3),
            limits=st.sampled_from([(), (), ("one",), LIMITS]),
            provider=st.sampled_from([None, None, "gpu"]),
            is_urgent=st.booleans(),
            rank=st.integers(0, 1),
        )

    return st.tuples(of("a"), of("b"))


def ready_tasks() -> st.SearchStrategy[list[ReadyTask]]:
    def numbered(drawn: list[tuple[Any, ...]]) -> list[ReadyTask]:
        return [ReadyTask(number, *values) for number, values in enumerate(drawn, 1)]

    return st.lists(
        st.tuples(
            st.integers(-1, 1),
            st.sampled_from(["a", "b"]),
            st.just("default"),
            st.sampled_from(sorted(TEXTS)),
            st.sampled_from([None, None, None, *SERVERS]),
            st.none(),
            st.booleans(),
            st.just(0),
            st.sampled_from([1, 1, 2, 5]),
        ),
        min_size=4,
        max_size=12,
    ).map(numbered)


requests = st.builds(
    ClaimRequest,
    node_id=st.just("node"),
    kinds=kind_requests(),
    limit=st.integers(0, 8),
    totals=st.just({"cpu": 8}),
    free=st.builds(lambda amount: {"cpu": amount}, st.integers(0, 8)),
    patience=st.sampled_from([None, 0]),
)
values = st.fixed_dictionaries({"one": st.integers(0, 3), "two": st.none(), PREFIX: st.integers(0, 3)})
meters = st.dictionaries(
    st.sampled_from(["one", "two", PREFIX]),
    st.builds(
        lambda burst, ahead: RateMeter(NewRate(per=10, burst=burst), NOW + ahead, NOW),
        st.integers(1, 4),
        st.integers(-5, 45),
    ),
)
capacities = st.tuples(*[st.integers(0, 2) for _ in SERVERS])
held = st.lists(
    st.sampled_from([HeldPermits(("one",), None, None, None), HeldPermits((), "gpu", SERVERS[0], 0)]),
    max_size=2,
    unique=True,
)


class BruteForce:
    """Decides for one task after the other; what is in use is added up from all tasks that were taken before."""

    def __init__(
        self,
        request: ClaimRequest,
        limits: dict[str, int | None],
        capacity: dict[str, int],
        held: Sequence[HeldPermits],
        rates: Mapping[str, RateMeter],
        chosen: Mapping[int, str | None],
    ) -> None:
        self.request = request
        self.chosen = chosen
        """Which of several free servers a task gets is the planner's choice: it is only checked."""
        self.kinds = {kind.kind: kind for kind in request.kinds}
        self.limits = limits
        self.capacity = capacity
        self.holders: list[tuple[tuple[str, ...], str | None]] = [(one.limits, one.server) for one in held]
        self.rates = rates
        self.starts: list[tuple[tuple[str, ...], str | None, int]] = []
        """The starts of this claim, with their units."""
        self.taken: list[ReadyTask] = []
        self.reserved: int | None = None

    def run(self, tasks: Sequence[ReadyTask]) -> None:
        stopped: set[tuple[str, str, str]] = set()
        has_reserved_in_vain = False
        for task in sorted(tasks, key=self.order):
            kind = self.kinds[task.kind]
            if Counter(one.kind for one in self.taken)[kind.kind] >= kind.count or task.group in stopped:
                continue
            may_reserve = self.request.patience is not None and not has_reserved_in_vain
            if not self.has_slot() and not may_reserve:
                continue
            if TEXTS[task.requirements].cost.get("cpu", 0) > self.free():
                stopped.add(task.group)
                if may_reserve and task.may_reserve and self.server_for(kind, task) != "nowhere":
                    if self.is_overtaken(kind, task):
                        self.reserved = task.id
                        return
                    has_reserved_in_vain = True
                continue
            if not self.has_slot():
                continue
            server = self.server_for(kind, task)
            if server != "nowhere":
                self.taken.append(task)
                self.holders.append((kind.limits, server))
                self.starts.append((kind.limits, server, task.units))

    def order(self, task: ReadyTask) -> tuple[Any, ...]:
        kind = self.kinds[task.kind]
        return not kind.is_urgent, -task.priority, kind.rank, task.id

    def has_slot(self) -> bool:
        return len(self.taken) < self.request.limit

    def free(self) -> int:
        return self.request.free["cpu"] - sum(TEXTS[one.requirements].cost.get("cpu", 0) for one in self.taken)

    def is_overtaken(self, kind: KindRequest, task: ReadyTask) -> bool:
        """Whether the end of one holder of the resource is not enough for it, or it needs permits besides."""
        needed = TEXTS[task.requirements].cost["cpu"]
        costs = [TEXTS[one.requirements].cost.get("cpu", 0) for one in self.taken]
        return any(0 < cost < needed for cost in costs) or bool(kind.limits) or kind.provider is not None

    def server_for(self, kind: KindRequest, task: ReadyTask) -> str | None:
        """A server that could take it, None if it needs none, "nowhere" if a limit or every server is full."""
        for name in kind.limits:
            most = self.limits[name]
            if (most is not None and self.in_use(name) >= most) or not self.is_rate_free(name):
                return "nowhere"
        if kind.provider is None:
            return None
        free = [address for address in SERVERS if task.target in (None, address) and self.needs_only_slot(address)]
        chosen = self.chosen.get(task.id)
        assert chosen is None or chosen in free, f"task {task.id} was given {chosen}, but only {free} are free"
        return chosen or (free[0] if free else "nowhere")

    def needs_only_slot(self, address: str) -> bool:
        used = sum(server == address for _, server in self.holders)
        prefix = self.limits[PREFIX] if covers(PREFIX, address) else None
        if covers(PREFIX, address) and not self.is_rate_free(PREFIX):
            return False
        return used < self.capacity[address] and (prefix is None or self.in_use(PREFIX) < prefix)

    def is_rate_free(self, name: str) -> bool:
        """Whether a part of the burst is left: what has started, in units of the rate, is less than the burst."""
        if name not in self.rates:
            return True
        meter = self.rates[name]
        before = max((meter.next_at or NOW) - NOW, 0) / meter.rate.per
        now = sum(
            units
            for limits, server, units in self.starts
            if name in limits or (server is not None and covers(name, server))
        )
        return before + now <= meter.rate.burst - 1

    def in_use(self, name: str) -> int:
        return sum(name in limits or (server is not None and covers(name, server)) for limits, server in self.holders)


@settings(max_examples=500)
@given(request=requests, tasks=ready_tasks(), limits=values, capacity=capacities, holds=held, rates=meters)
def test_the_planner_takes_what_the_brute_force_chooser_takes(
    request: ClaimRequest,
    tasks: list[ReadyTask],
    limits: dict[str, int | None],
    capacity: tuple[int, ...],
    holds: list[HeldPermits],
    rates: dict[str, RateMeter],
) -> None:
    servers = [ServerCapacity("gpu", address, most) for address, most in zip(SERVERS, capacity, strict=True)]
    plan = choose(request, tasks, SharedCapacity(limits, servers, holds, rates))
    chosen = {entry.task.id: entry.grant.server for entry in plan.taken}
    brute_force = BruteForce(request, limits, dict(zip(SERVERS, capacity, strict=True)), holds, rates, chosen)
    brute_force.run(tasks)
    assert [entry.task.id for entry in plan.taken] == [task.id for task in brute_force.taken]
    assert (None if plan.reserved is None else plan.reserved.id) == brute_force.reserved


def test_a_retry_avoids_the_server_of_the_attempt_before_if_there_is_another() -> None:
    kind = KindRequest(kind="a", count=9, provider="gpu")
    request = ClaimRequest(node_id="node", kinds=(kind,), limit=9)
    task = ReadyTask(1, 0, "a", avoid=server_to_avoid("x", attempts=1, server_failures=0))
    both = SharedCapacity({}, [ServerCapacity("gpu", "x", 5), ServerCapacity("gpu", "y", 5)], [])
    assert choose(request, [task], both).taken[0].grant.server == "y"
    alone = SharedCapacity({}, [ServerCapacity("gpu", "x", 5)], [])
    assert choose(request, [task], alone).taken[0].grant.server == "x"
    assert server_to_avoid("x", attempts=0, server_failures=1) == "x"
    assert server_to_avoid("x", attempts=0, server_failures=0) is None
