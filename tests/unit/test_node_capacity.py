"""What a node can carry: nothing is given away twice, and what is said of many holds for each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.requirements import (
    NO_REQUIREMENTS,
    ONE_PROCESS,
    ONE_THREAD,
    PROCESS,
    SLOT,
    THREAD,
    UNIT,
    Requirements,
    make_requirements,
    parse_requirements,
    with_execution,
)
from synergon.stores.rules.node_capacity import (
    ANY_NUMBER,
    Fit,
    NodeCapacity,
    claim_order,
    requirements_of,
)

NAMES = ("cpu", "gpu")
LABELS = frozenset({"east", "a100"})

amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 12))
labels = st.frozensets(st.sampled_from(sorted(LABELS)))
all_demands = st.builds(make_requirements, amounts, labels, labels)
kind_requests = st.builds(
    KindRequest,
    kind=st.just("work"),
    count=st.just(9),
    is_urgent=st.booleans(),
    is_backed_off=st.booleans(),
    is_brief=st.booleans(),
)
requests = st.builds(
    ClaimRequest,
    node_id=st.just("node"),
    kinds=st.just(()),
    limit=st.just(9),
    labels=labels,
    totals=amounts,
    free=amounts,
    yielding=amounts,
    held=amounts,
    reserved_task=st.sampled_from([None, 0, 3]),
)


@given(request=requests, tasks=st.lists(st.tuples(kind_requests, all_demands), max_size=12))
def test_no_more_is_taken_than_is_free_and_urgent_tasks_take_no_more_than_others_yield(
    request: ClaimRequest, tasks: list[tuple[KindRequest, Requirements]]
) -> None:
    scales = NodeCapacity(request)
    used = dict.fromkeys(NAMES, 0)
    for task_id, (kind_request, wanted) in enumerate(tasks):
        if scales.fit(kind_request, wanted, task_id) is not Fit.NOW:
            continue
        scales.take(kind_request, wanted, task_id)
        for name, amount in wanted.cost.items():
            used[name] += amount
            more = request.yielding.get(name, 0) if kind_request.is_urgent and not kind_request.is_backed_off else 0
            assert used[name] <= request.free.get(name, 0) + more


@given(request=requests, tasks=st.lists(all_demands, max_size=12))
def test_others_leave_alone_what_is_held(request: ClaimRequest, tasks: list[Requirements]) -> None:
    scales = NodeCapacity(request)
    left = dict(request.free)
    for wanted in tasks:
        if scales.fit(KindRequest(kind="work", count=9), wanted) is Fit.NOW:
            scales.take(KindRequest(kind="work", count=9), wanted)
            for name, amount in wanted.cost.items():
                left[name] -= amount
                assert left[name] >= request.held.get(name, 0)


@given(request=requests, kind_request=kind_requests, wanted=all_demands)
def test_as_many_fit_as_is_said_and_not_one_more(
    request: ClaimRequest, kind_request: KindRequest, wanted: Requirements
) -> None:
    scales = NodeCapacity(request)
    most = scales.most(kind_request, wanted)
    if most == ANY_NUMBER:
        assert not wanted.cost
        assert scales.fit(kind_request, wanted) is Fit.NOW
        return
    for _ in range(most):
        assert scales.fit(kind_request, wanted) is Fit.NOW
        scales.take(kind_request, wanted)
    assert scales.fit(kind_request, wanted) is not Fit.NOW
    assert scales.most(kind_request, wanted) == 0


@given(request=requests, kind_request=kind_requests, wanted=all_demands)
def test_what_never_fits_is_what_the_whole_node_is_too_small_or_wrong_for(
    request: ClaimRequest, kind_request: KindRequest, wanted: Requirements
) -> None:
    is_right = set(wanted.needs) <= request.labels and not set(wanted.forbids) & request.labels
    is_large = all(request.totals.get(name, 0) >= amount for name, amount in wanted.cost.items())
    assert (NodeCapacity(request).fit(kind_request, wanted) is not Fit.NEVER) == (is_right and is_large)


def test_what_was_held_for_a_task_is_held_from_nobody_once_it_is_taken() -> None:
    numbers = {"cpu": 8}
    request = ClaimRequest(
        node_id="node", kinds=(), limit=9, totals=numbers, free=numbers, held={"cpu": 6}, reserved_task=7
    )
    kind_request = KindRequest(kind="work", count=9)
    big, small = (make_requirements({"cpu": amount}, frozenset(), frozenset()) for amount in (6, 2))
    scales = NodeCapacity(request)
    assert scales.fit(kind_request, big, 1) is Fit.LATER
    assert scales.fit(kind_request, big, 7) is Fit.NOW
    scales.take(kind_request, big, 7)
    assert scales.fit(kind_request, small, 8) is Fit.NOW
    scales.take(kind_request, small, 8)
    assert scales.fit(kind_request, small, 9) is Fit.LATER


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(-2, 2), st.integers(0, 2)), min_size=2, max_size=2))
def test_commands_go_first_then_urgent_ones_then_priority_then_rank_then_age(
    both: list[tuple[bool, bool, int, int]],
) -> None:
    places = [
        claim_order(
            KindRequest(kind="work", count=1, is_command=is_command, is_urgent=is_urgent, rank=rank), priority, task_id
        )
        for task_id, (is_command, is_urgent, priority, rank) in enumerate(both, 1)
    ]
    (first, second) = both
    if first[0] or second[0]:
        expected = first[0]  # of two commands the older
    elif first[1] != second[1]:
        expected = first[1]
    elif first[2] != second[2]:
        expected = first[2] > second[2]
    else:
        expected = first[3] <= second[3]
    assert (places[0] < places[1]) == expected


# ---------------------------------------------------------------- slots and child processes


def request_of(*wanted: KindRequest, free: int, of: str = PROCESS, **more: Any) -> ClaimRequest:
    totals, left = {of: 4 * UNIT}, {of: free * UNIT}
    return ClaimRequest(node_id="node", kinds=wanted, limit=3, totals=totals, free=left, **more)


@pytest.mark.parametrize(
    ("kinds", "free", "is_enough"),
    [("a", 2, True), ("ab", 2, False), ("ab", 3, True), ("ab", 0, True), ("ab", -1, True), ("aa", 2, True)],
)
@pytest.mark.parametrize("name", [PROCESS, THREAD])
def test_child_processes_and_threads_are_weighed_only_if_several_kinds_share_too_few(
    name: str, kinds: str, free: int, is_enough: bool
) -> None:
    of_kinds = [KindRequest(kind=kind, count=9, requirements=Requirements(cost={name: UNIT})) for kind in kinds]
    plain, urgent = KindRequest(kind="plain", count=9), KindRequest(kind="urgent", count=9, is_urgent=True)
    request = request_of(free=free, of=name)
    reduced = request.by_slots_alone([*of_kinds, plain])
    assert (reduced is not None) is is_enough
    if reduced is not None:
        most = 9 if free >= request.limit else max(free, 0)
        assert [kind.count for kind in reduced.kinds] == [*[most] * len(of_kinds), 9]
        assert reduced.limit == request.limit
    assert request.by_slots_alone([*of_kinds, plain, urgent]) is None
    assert request_of(free=free, of=name, reserved_task=1).by_slots_alone([*of_kinds, plain]) is None


@pytest.mark.parametrize(("free", "limit"), [(4, 3), (2, 2), (0, 3)])
def test_kinds_that_all_run_in_threads_are_requested_up_to_the_number_of_free_ones(free: int, limit: int) -> None:
    kinds = [KindRequest(kind=kind, count=9, requirements=ONE_THREAD) for kind in "ab"]
    reduced = request_of(free=free, of=THREAD).by_slots_alone(kinds)
    assert reduced is not None
    assert (reduced.limit, [kind.count for kind in reduced.kinds]) == (limit, [9 if free >= 3 else free] * 2)


def test_slots_are_for_all_and_what_others_yield_is_for_urgent_tasks() -> None:
    plain, urgent = KindRequest(kind="plain", count=9), KindRequest(kind="urgent", count=9, is_urgent=True)
    command = KindRequest(kind="command", count=9, is_command=True)
    scales = NodeCapacity(request_of(free=0, yielding={SLOT: 2}))
    scales.take(command, NO_REQUIREMENTS)
    assert [scales.slots(kind_request) for kind_request in (plain, urgent, command)] == [3, 5, ANY_NUMBER]
    for _ in range(4):
        scales.take(urgent, NO_REQUIREMENTS)
    assert [scales.slots(kind_request) for kind_request in (plain, urgent, command)] == [-1, 1, ANY_NUMBER]


@pytest.mark.parametrize(("free", "expected"), [(0, Fit.NO_UNIT), (1, Fit.LATER)])
def test_who_lacks_a_child_process_has_it_in_turn(free: int, expected: Fit) -> None:
    kind_request, numbers = KindRequest(kind="work", count=9), {PROCESS: UNIT, "cpu": 2}
    left = {PROCESS: free * UNIT, "cpu": 1}
    scales = NodeCapacity(ClaimRequest(node_id="node", kinds=(), limit=9, totals=numbers, free=left))
    assert scales.fit(kind_request, Requirements(cost=numbers), 1) is expected
    assert scales.fit(kind_request, ONE_PROCESS, 1) is (Fit.NOW if free else Fit.NO_UNIT)
    assert scales.fit(kind_request, Requirements(cost={PROCESS: 2 * UNIT}), 1) is Fit.NEVER


@pytest.mark.parametrize("is_process", [True, False])
@pytest.mark.parametrize("of_kind", [NO_REQUIREMENTS, make_requirements({"cpu": 1}, frozenset({"a"}), frozenset())])
def test_a_row_says_whether_it_takes_a_child_process_or_leaves_it_to_its_kind(
    of_kind: Requirements, is_process: bool
) -> None:
    kind_request = KindRequest(kind="work", count=1, requirements=with_execution(of_kind, is_process=is_process))
    left = Requirements(left_to_kind=("cost", "needs", "forbids"))
    assert requirements_of(kind_request, left.text) == kind_request.requirements
    assert requirements_of(kind_request, of_kind.text) == kind_request.requirements
    for said in (True, False):
        for text in (left, of_kind):
            found = requirements_of(kind_request, replace(text, is_process=said).text)
            assert (PROCESS in found.cost, found.needs) == (said, of_kind.needs)
            assert found.cost.get("cpu") == of_kind.cost.get("cpu")


# ---------------------------------------------------------------- texts


@given(wanted=all_demands)
def test_a_demand_comes_back_from_its_text_and_is_never_silent(wanted: Requirements) -> None:
    assert parse_requirements(wanted.text) == wanted
    assert wanted.text
    assert requirements_of(KindRequest(kind="work", count=1), wanted.text) == wanted


@given(cost=amounts, needs=labels, forbids=labels)
def test_equal_demands_have_equal_texts_however_they_were_written(
    cost: dict[str, int], needs: frozenset[str], forbids: frozenset[str]
) -> None:
    turned = dict(reversed(cost.items()))
    assert make_requirements({**turned, "ram": 0}, needs, forbids).text == make_requirements(cost, needs, forbids).text


def test_a_text_that_demands_nothing_is_not_the_silence_of_a_row() -> None:
    kind_request = KindRequest(
        kind="work", count=1, requirements=make_requirements({"cpu": UNIT}, frozenset(), frozenset())
    )
    assert json.loads(NO_REQUIREMENTS.text) == {}
    assert requirements_of(kind_request, NO_REQUIREMENTS.text).cost == {}
    assert requirements_of(kind_request, "") == kind_request.requirements


@pytest.mark.parametrize(
    ("more", "needs_only_slot"),
    [
        ({}, True),
        ({"rank": 3}, True),
        ({"is_brief": True}, True),
        ({"is_urgent": True}, False),
        ({"only": ()}, False),
        ({"requirements": make_requirements({"cpu": 1}, frozenset(), frozenset())}, False),
        ({"requirements": ONE_PROCESS}, True),
        ({"requirements": ONE_THREAD}, True),
        (
            {"requirements": with_execution(make_requirements({"cpu": 1}, frozenset(), frozenset()), is_process=True)},
            False,
        ),
        ({"limits": ("license",)}, False),
    ],
)
def test_a_room_is_free_if_its_tasks_need_nothing_but_a_slot_and_a_child_process(
    more: dict[str, Any], needs_only_slot: bool
) -> None:
    assert KindRequest(kind="work", count=1, **more).needs_only_slot is needs_only_slot
