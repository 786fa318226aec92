"""Who gets a place: limits that hold together, and the choice of the server."""

from __future__ import annotations

from collections import Counter
from typing import Any

from synergon.model.claims import KindRequest
from synergon.stores.rules.claim_plan import ReadyTask
from synergon.stores.rules.shared_capacity import HeldPermits, ServerCapacity, SharedCapacity


def gpu(address: str, capacity: int | None, *, backed_off: bool = False, trial: bool = False) -> ServerCapacity:
    return ServerCapacity("gpu", address, capacity, is_backed_off=backed_off, is_on_trial=trial)


def kind_request(count: int = 100, *limits: str, provider: str | None = "gpu") -> KindRequest:
    return KindRequest(kind="infer", count=count, limits=limits, provider=provider)


def task(number: int, **more: Any) -> ReadyTask:
    return ReadyTask(number, 0, "infer", **more)


def taken(allotment: SharedCapacity, count: int, where: KindRequest) -> list[str | None]:
    grants = [allotment.take(where, task(number)) for number in range(count)]
    return [grant.server for grant in grants if grant is not None]


def test_servers_are_filled_evenly_by_their_capacity_and_no_further() -> None:
    allotment = SharedCapacity({}, [gpu("a", 4), gpu("b", 2)], [])
    assert allotment.most(kind_request()) == 6
    servers = taken(allotment, 3, kind_request())
    assert Counter(servers) == {"a": 2, "b": 1}
    assert Counter(taken(allotment, 50, kind_request())) == {"a": 2, "b": 1}
    assert allotment.most(kind_request()) == 0


def test_equals_take_turns() -> None:
    def first(number: int) -> str | None:
        grant = SharedCapacity({}, [gpu("a", 1), gpu("b", 1), gpu("c", 1)], []).take(kind_request(), task(number))
        return grant.server if grant else None

    assert Counter(first(number) for number in range(300)) == {"a": 100, "b": 100, "c": 100}


def test_what_runs_counts_and_keeps_its_slot() -> None:
    holdings = [HeldPermits((), "gpu", "a", 1), HeldPermits((), "gpu", "b", 0), HeldPermits((), "other", "a", 0)]
    allotment = SharedCapacity({}, [gpu("a", 2), gpu("b", 1)], holdings)
    assert allotment.most(kind_request()) == 1
    grant = allotment.take(kind_request(), task(1))
    assert grant is not None
    assert (grant.server, grant.slot) == ("a", 0)
    assert allotment.take(kind_request(), task(2)) is None


def test_a_prefix_holds_over_all_servers_below_it_and_beside_their_own_capacity() -> None:
    servers = [gpu("https://api.example.com/v1", 8), gpu("https://api.example.com/v2", 1), gpu("https://other", 1)]
    allotment = SharedCapacity({"https://api.example.com": 3}, servers, [])
    assert Counter(taken(allotment, 50, kind_request())) == {
        "https://api.example.com/v1": 2,
        "https://api.example.com/v2": 1,
        "https://other": 1,
    }


def test_work_of_a_removed_server_still_counts_under_the_prefix() -> None:
    holdings = [HeldPermits((), "gpu", "https://api/old", 0)]
    allotment = SharedCapacity({"https://api": 2}, [gpu("https://api/new", 5)], holdings)
    assert len(taken(allotment, 9, kind_request())) == 1


def test_named_limits_hold_together_and_none_is_unlimited() -> None:
    allotment = SharedCapacity(
        {"license": 2, "kind:infer": 5, "free": None}, [], [HeldPermits(("license",), None, None, None)]
    )
    where = kind_request(100, "license", "kind:infer", "free", provider=None)
    assert allotment.most(where) == 1
    assert allotment.take(where, task(1)) is not None
    assert allotment.take(where, task(2)) is None
    assert allotment.take(kind_request(1, "kind:infer", provider=None), task(3)) is not None


def test_a_closed_limit_and_an_empty_pool_give_nothing() -> None:
    assert SharedCapacity({"license": 0}, [], []).most(kind_request(1, "license", provider=None)) == 0
    assert SharedCapacity({}, [], []).most(kind_request()) == 0
    assert SharedCapacity({}, [gpu("a", 0)], []).take(kind_request(), task(1)) is None


def test_a_server_that_failed_a_task_is_avoided_while_there_is_another() -> None:
    allotment = SharedCapacity({}, [gpu("a", 9), gpu("b", 1)], [])
    grants = [allotment.take(kind_request(), task(number, avoid="a")) for number in range(2)]
    assert [grant.server for grant in grants if grant] == ["b", "a"]


def test_a_task_that_has_blamed_a_server_waits_for_another_one_that_is_in_service() -> None:
    blamed = task(2, avoid="a", has_blamed=True)
    busy = SharedCapacity({}, [gpu("a", 9), gpu("b", 1)], [HeldPermits((), "gpu", "b", 0)])
    assert busy.take(kind_request(), blamed) is None
    assert busy.take(kind_request(), task(3)) is not None
    for other in (gpu("b", 0), gpu("b", 9, backed_off=True)):
        grant = SharedCapacity({}, [gpu("a", 9), other], []).take(kind_request(), blamed)
        assert grant is not None
        assert grant.server == "a"
    on_trial = SharedCapacity({}, [gpu("a", 9), gpu("b", 9, trial=True)], [HeldPermits((), "gpu", "b", 0)])
    grant = on_trial.take(kind_request(), blamed)
    assert grant is not None
    assert grant.server == "a"


def test_a_resting_server_gets_nothing_and_one_on_trial_one_at_a_time() -> None:
    allotment = SharedCapacity({}, [gpu("a", 9, backed_off=True), gpu("b", 9, trial=True)], [])
    assert taken(allotment, 5, kind_request()) == ["b"]


def test_a_target_is_the_only_server_that_will_do() -> None:
    allotment = SharedCapacity({}, [gpu("a", 1), gpu("b", 1)], [])
    grant = allotment.take(kind_request(), task(1, target="b"))
    assert grant is not None
    assert grant.server == "b"
    assert allotment.take(kind_request(), task(2, target="b")) is None
