"""What the machine of the model test chooses from."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st
from msgspec.structs import replace
from tests.stores.actions import ERROR, amounts, demands
from tests.stores.model import LATER

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.lifecycle import Reason
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    Failed,
    HandedBack,
    KeyAssigned,
    Outcome,
    Progress,
    Refused,
    Retrying,
    ServerFault,
    Snoozed,
    Succeeded,
)
from synergon.model.requirements import (
    NO_REQUIREMENTS,
    ONE_PROCESS,
    ONE_THREAD,
    PROCESS,
    SLOT,
    THREAD,
    UNIT,
    WHOLE_NODE,
    Requirements,
    parse_requirements,
    with_execution,
)
from synergon.model.tasks import NewTask
from synergon.policies import HIGHEST_PRIORITY, LOWEST_PRIORITY

TEXTS = (
    demands(),
    demands(cpu=1),
    demands(cpu=2),
    demands(cpu=2, gpu=0.5),
    demands("east", cpu=1),
    demands(forbids="east"),
)
COSTLY_PROCESS = with_execution(parse_requirements(demands(cpu=1)), is_process=True)
WAYS = (
    Requirements(is_process=True).text,
    Requirements(is_process=False).text,
    Requirements(cost=amounts(cpu=1), is_process=True).text,
)
"""What calls say that are to run in a child process, or not."""

kinds = st.sampled_from(["a", "b"])
queues = st.sampled_from(["x", "y"])
priorities = st.sampled_from([0, 0, 1, -1, HIGHEST_PRIORITY, LOWEST_PRIORITY])
limits = st.sampled_from([0, 1, 2, 100, 100, 100])
picks = st.tuples(st.sampled_from([True, True, True, False]), st.integers(0, 30))
"""Whether only what is alive is chosen from, and an index, so that examples stay meaningful when they shrink."""
notes = st.sampled_from([None, Progress(fraction=0.25), Progress(fraction=0.5)])
some_picks = st.lists(picks, min_size=1, max_size=3)

new_tasks = st.builds(
    NewTask,
    kind=kinds,
    queue=queues,
    priority=priorities,
    delay=st.sampled_from([None, None, 0, LATER]),
    expires_in=st.sampled_from([None, None, None, None, None, 0, LATER]),
    key=st.sampled_from([None, None, "k", "l"]),
    unique_for=st.sampled_from([None, None, None, LATER]),
    on_conflict=st.sampled_from(["return", "raise", "replace"]),
    payload=st.sampled_from([b"1", b"2"]),
    max_attempts=st.sampled_from([None, 1, 5]),
    limit_key=st.sampled_from([None, None, "ada", "ada", "bob"]),
    requirements=st.sampled_from(["", "", "", "", *TEXTS, demands(cpu=2), *WAYS]),
).map(lambda task: task if task.key is not None else replace(task, unique_for=None))

FAILURE: Final = Failed(reason=Reason.ERROR, error=ERROR)

outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, result=st.sampled_from([None, b"1"]), children=st.lists(new_tasks, max_size=2).map(tuple)),
    st.builds(Failed, reason=st.sampled_from([Reason.ERROR, Reason.EXHAUSTED]), error=st.just(ERROR)),
    st.builds(Retrying, delay=st.sampled_from([0, LATER]), error=st.just(ERROR)),
    st.builds(Snoozed, delay=st.sampled_from([0, LATER])),
    st.builds(Cancelled, why=st.sampled_from([None, "why"])),
    st.sampled_from([HandedBack(), HandedBack(protected_for=LATER), HandedBack(delay=LATER)]),
    st.just(Crashed(error=ERROR)),
    st.sampled_from(
        [ServerFault(error=ERROR, otherwise=other) for other in (FAILURE, Retrying(delay=LATER, error=ERROR))]
    ),
    st.sampled_from([KeyAssigned(limit_key="ada"), KeyAssigned(limit_key="bob")]),
    st.just(Refused(error=ERROR, requirements="")),  # those of the claim
)

limit_names = st.sampled_from(["key:a", "key:a", "key:b", "kind:a", "both"])
limit_values = st.sampled_from([None, 0, 1, 1, 2, 2, 3])


def with_processes(machine: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """This machine with two child processes, two threads and one whole node, some of them free."""
    totals = machine["totals"] | {PROCESS: 2 * UNIT, THREAD: 2 * UNIT, WHOLE_NODE: UNIT}
    numbers = st.sampled_from([2, 1, 1, 0, -1])
    return st.tuples(numbers, numbers, st.sampled_from([0, 0, UNIT])).map(
        lambda free: (
            machine
            | {
                "totals": totals,
                "free": machine["free"] | {PROCESS: free[0] * UNIT, THREAD: free[1] * UNIT, WHOLE_NODE: free[2]},
            }
        )
    )


shares = st.sampled_from(
    [(), (amounts(cpu=1),), (amounts(cpu=1),), (amounts(cpu=2),), (amounts(cpu=4, gpu=1), amounts(gpu=1))]
)
"""What might run on a node."""
machines: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "labels": st.sampled_from([frozenset(), frozenset({"east"})]),
        "totals": st.sampled_from([amounts(cpu=4, gpu=1), amounts(cpu=4, gpu=1), amounts(cpu=1), {}]),
        "free": st.sampled_from([amounts(cpu=cpu, gpu=gpu) for cpu, gpu in ((0, 1), (1, 1), (2, 0), (4, 1), (-1, 0))]),
        "yielding": st.sampled_from([{}, {SLOT: 1}, amounts(cpu=1), amounts(cpu=2) | {SLOT: 2, PROCESS: UNIT}]),
        "held": st.sampled_from([{}, amounts(cpu=1), amounts(cpu=2) | {PROCESS: UNIT}, {WHOLE_NODE: UNIT}]),
        "patience": st.sampled_from([0, 0, 0, None, LATER]),
        "shares": shares,
    }
).flatmap(with_processes)
"""What a node might say of itself; it need not be possible, only the same for the store and the model."""
details: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "rank": st.sampled_from([0, 0, 1]),
        "requirements": st.sampled_from(
            [
                NO_REQUIREMENTS,
                NO_REQUIREMENTS,
                ONE_PROCESS,
                ONE_PROCESS,
                ONE_THREAD,
                ONE_THREAD,
                *(parse_requirements(text) for text in TEXTS),
                COSTLY_PROCESS,
            ]
        ),
        "is_urgent": st.sampled_from([False, False, False, True]),
        "is_backed_off": st.sampled_from([False, False, False, True]),
        "is_brief": st.sampled_from([False, False, False, True]),
        "is_isolable": st.sampled_from([True, True, False]),
        "is_threaded": st.booleans(),
    }
)
"""What a room might say beside its kind and number."""


@st.composite
def _requests(draw: st.DrawFn) -> ClaimRequest:
    holds = draw(st.sampled_from([{}, {"a": ("kind:a", "both"), "b": ("both",)}]))
    counts = draw(st.dictionaries(kinds, limits, min_size=1))
    kind_requests = [
        KindRequest(kind=kind, count=count, limits=holds.get(kind, ()), **draw(details))
        for kind, count in counts.items()
    ]
    wanted = draw(st.sampled_from([None, None, frozenset({"x"}), frozenset({"x", "y"}), frozenset[str]()]))
    return ClaimRequest(
        node_id="",
        kinds=tuple(kind_requests),
        limit=draw(limits),
        queues=wanted,
        reserve_microseconds=LATER,
        **draw(machines),
    )


requests = _requests()
"""A claim of a node that has yet to say who it is."""
