"""Every store beside the model where nodes are full: few kinds of steps, and most of them claims."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.stores.actions import amounts, demands
from tests.stores.model import LATER
from tests.stores.strategies import COSTLY_PROCESS, TEXTS, WAYS, details, machines, queues, requests, shares, some_picks
from tests.stores.test_model import DistributedMachine, MemoryMachine, PostgresMachine, SqliteMachine, StoreMachine

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.outcomes import HandedBack, Succeeded
from synergon.model.requirements import NO_REQUIREMENTS, ONE_PROCESS, ONE_THREAD, PROCESS, THREAD, UNIT
from synergon.model.tasks import NewTask

IS_LONG = bool(os.environ.get("SYNERGON_LONG"))

plain_tasks = st.builds(
    NewTask,
    kind=st.sampled_from("aab"),
    queue=queues,
    priority=st.sampled_from([0, 0, 0, 1]),
    requirements=st.sampled_from([*TEXTS, demands(cpu=2), demands(cpu=2), "", "", *WAYS]),
    key=st.sampled_from([None, None, None, "k"]),
    on_conflict=st.just("replace"),
)
alive = st.tuples(st.just(True), st.integers(0, 5))
ends = st.sampled_from([Succeeded(), HandedBack(), HandedBack(protected_for=LATER)])
full_requests = st.builds(
    lambda free, rank, patience, limit, processes, threads, of_a, of_b, shares: ClaimRequest(
        node_id="",
        kinds=(
            KindRequest(kind="a", count=9, rank=rank, requirements=of_a),
            KindRequest(kind="b", count=9, requirements=of_b),
        ),
        limit=limit,
        totals=amounts(cpu=4, gpu=1) | {PROCESS: 2 * UNIT, THREAD: 3 * UNIT},
        free=amounts(cpu=free, gpu=1) | {PROCESS: processes * UNIT, THREAD: threads * UNIT},
        held=amounts(cpu=min(free, 2)),
        patience=patience,
        reserve_microseconds=LATER,
        shares=shares,
    ),
    free=st.sampled_from([0, 1, 2, 4]),
    rank=st.sampled_from([0, 1]),
    patience=st.sampled_from([0, 0, None]),
    limit=st.sampled_from([9, 9, 2, 1, 0]),
    processes=st.sampled_from([2, 1, 0]),
    threads=st.sampled_from([3, 1, 0]),
    of_a=st.sampled_from([NO_REQUIREMENTS, ONE_PROCESS, ONE_THREAD]),
    of_b=st.sampled_from([NO_REQUIREMENTS, ONE_PROCESS, ONE_THREAD, COSTLY_PROCESS]),
    shares=shares,
)
"""Of a node that is often too full for the bigger tasks, and keeps what it has for the one that it was told."""

steps: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    *[
        st.tuples(
            st.just("claim"),
            st.fixed_dictionaries(
                {
                    "pick": alive,
                    "request": wanted,
                    "only": st.one_of(st.none(), st.none(), st.none(), some_picks),
                    "remembers": st.sampled_from([True, True, True, False]),
                }
            ),
        )
        for wanted in (full_requests, full_requests, requests)
    ],
    st.tuples(st.just("insert"), st.fixed_dictionaries({"tasks": st.lists(plain_tasks, min_size=1, max_size=3)})),
    st.tuples(
        st.just("finish"),
        st.fixed_dictionaries({"some": st.lists(st.tuples(alive, ends, st.none()), min_size=1, max_size=2)}),
    ),
    st.tuples(
        st.just("operate"),
        st.fixed_dictionaries(
            {
                "some": some_picks,
                "operation": st.sampled_from(["cancel", "retry", "put off", "call", "set priority"]),
                "priority": st.sampled_from([0, 1]),
                "why": st.none(),
            }
        ),
    ),
    st.tuples(
        st.just("a_node_comes_and_may_replace_another"),
        st.fixed_dictionaries({"pick": alive, "leaves": st.booleans()}),
    ),
    st.tuples(
        st.just("tell_node"),
        st.fixed_dictionaries({"pick": alive, "verb": st.sampled_from(["cordon", "uncordon", "uncordon"])}),
    ),
    st.tuples(
        st.just("pause_or_resume"),
        st.fixed_dictionaries(
            {"names": st.lists(queues, unique=True), "pauses": st.sampled_from([True, False, False])}
        ),
    ),
    st.tuples(
        st.just("look"),
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from("ab"),
                "more": details,
                "machine": machines,
                "some": some_picks,
                "limit": st.sampled_from([1, 2, 100]),
            }
        ),
    ),
)


def run(machine: StoreMachine, tasks: list[NewTask], plan: list[tuple[str, dict[str, Any]]]) -> None:
    try:
        machine.start_with_nodes_and_tasks(tasks)
        for name, arguments in plan:
            if machine.model.tasks or name == "insert":
                getattr(machine, name)(**arguments)
        machine.everything_is_the_same()
    finally:
        machine.teardown()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "examples"),
    [(MemoryMachine, 100), (SqliteMachine, 30), (PostgresMachine, 4), (DistributedMachine, 2)],
    ids=["memory", "sqlite", "postgres", "distributed"],
)
def test_a_node_is_given_and_keeps_room_for_what_the_model_says(kind: type[StoreMachine], examples: int) -> None:
    @settings(
        max_examples=examples * (10 if IS_LONG else 1),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(tasks=st.lists(plain_tasks, min_size=3, max_size=8), plan=st.lists(steps, min_size=10, max_size=30))
    def test(tasks: list[NewTask], plan: list[tuple[str, dict[str, Any]]]) -> None:
        run(kind(), tasks, plan)

    test()
