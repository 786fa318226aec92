"""The retention of a store: declared by workers, set by operators."""

from __future__ import annotations

from synergon.model.operator_actions import NewAction
from synergon.model.tasks import Cutoffs, StoredRetention
from synergon.stores.base import Store

WEEK = Cutoffs(succeeded=7, failed=30, cancelled=None, statistics=90)
DAY = Cutoffs(succeeded=1, failed=1, cancelled=1)


async def ages(store: Store) -> tuple[int | None, ...]:
    found = await store.retention()
    assert found is not None
    return found.succeeded, found.failed, found.cancelled, found.statistics


async def set_by_operator(store: Store, *value: object) -> str | None:
    return (await store.act(NewAction(verb="set_retention", subject="history", value=value, who="ada"))).outcome


async def test_there_is_none_before_a_worker_declares_one(store: Store) -> None:
    assert await store.retention() is None
    assert await store.declare_retention(WEEK, "left") is None
    assert await ages(store) == (7, 30, None, 90)


async def test_the_last_declaration_that_differs_wins_and_names_the_one_before(store: Store) -> None:
    await store.declare_retention(WEEK, "left")
    before = await store.declare_retention(DAY, "right")
    assert isinstance(before, StoredRetention)
    assert (before.succeeded, before.declared_by) == (7, "left")
    assert await ages(store) == (1, 1, 1, None)


async def test_the_audit_records_a_declaration_that_changes_the_retention(store: Store) -> None:
    await store.declare_retention(WEEK, "left")
    await store.declare_retention(WEEK, "right")
    assert await store.audit() == []
    await store.declare_retention(DAY, "right")
    (entry,) = await store.audit()
    assert (entry.verb, entry.who, entry.value) == ("set_retention", "worker right", [1, 1, 1, None])
    assert (entry.outcome or "").endswith("was 0 s (succeeded), 0 s (failed), for ever (cancelled), 0 s (statistics)")


async def test_a_default_counts_only_if_there_is_no_retention(store: Store) -> None:
    assert await store.declare_retention(WEEK, "left", is_default=True) is None
    assert await ages(store) == (7, 30, None, 90)
    before = await store.declare_retention(DAY, "right")
    assert before is not None
    assert before.declared_by == "left"
    assert await store.declare_retention(WEEK, "left", is_default=True) is None
    assert await ages(store) == (1, 1, 1, None)
    assert len(await store.audit()) == 1


async def test_a_default_does_not_replace_the_value_of_an_operator(store: Store) -> None:
    await set_by_operator(store, 5, 6, None, 7)
    assert await store.declare_retention(WEEK, "left", is_default=True) is None
    assert await ages(store) == (5, 6, None, 7)


async def test_a_declaration_that_equals_the_last_one_leaves_the_value_of_an_operator(store: Store) -> None:
    await store.declare_retention(WEEK, "left")
    outcome = await set_by_operator(store, 5, None, 5, None)
    assert outcome == "kept: 0 s (succeeded), for ever (failed), 0 s (cancelled), for ever (statistics) now"
    assert await store.declare_retention(WEEK, "right") is None
    assert await ages(store) == (5, None, 5, None)
    await store.declare_retention(DAY, "right")
    assert await ages(store) == (1, 1, 1, None)


async def test_an_operator_may_set_it_before_a_worker_declares_one(store: Store) -> None:
    await set_by_operator(store, 5, 6, None, 7)
    assert await ages(store) == (5, 6, None, 7)


async def test_a_value_that_makes_no_sense_is_rejected(store: Store) -> None:
    for value in ((), (1, 2, 3), (1, 2, -3, 4), ("a", 2, 3, 4), (10**17, 1, 1, 1)):
        outcome = await set_by_operator(store, *value)
        assert outcome is not None
        assert outcome.startswith("rejected: ")
    assert await store.retention() is None


async def test_the_audit_names_the_node_of_an_action(store: Store) -> None:
    action = NewAction(verb="cordon", subject="gone", who="ada", node_name="left on host", rejection="no")
    assert (await store.act(action)).node_name == "left on host"
    assert [entry.node_name for entry in await store.audit()] == ["left on host"]
