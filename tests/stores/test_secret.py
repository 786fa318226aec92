"""The cluster's secret, and whom to tell of a task's end: what peers need of a store."""

from __future__ import annotations

import asyncio

from tests.stores.actions import Worker

from synergon.model.tasks import NewTask
from synergon.stores import open_store
from synergon.stores.base import Store


async def test_the_secret_is_made_once_and_is_the_same_for_everybody(store: Store) -> None:
    found = await asyncio.gather(*(store.secret() for _ in range(5)))
    assert len(set(found)) == 1
    assert len(found[0]) >= 32
    assert await store.secret() == found[0]


async def test_another_store_on_the_same_database_has_the_same_secret(store: Store) -> None:
    if not store.capabilities.shared:
        return
    other = open_store(store.url)
    await other.open()
    try:
        assert await other.secret() == await store.secret()
    finally:
        await other.close()


async def test_a_replaced_secret_is_another_one_and_the_identity_stays(store: Store) -> None:
    identity, known = await store.identity(), {await store.secret()}
    for _ in range(3):
        await store.replace_secret()
        assert await store.secret() not in known
        assert len(await store.secret()) >= 32
        known.add(await store.secret())
        assert await store.identity() == identity


async def test_a_claim_says_whom_to_tell_of_the_end(store: Store, worker: Worker) -> None:
    await store.insert([NewTask(kind="a", origin="me"), NewTask(kind="a"), NewTask(kind="a", key="k", origin="you")])
    await store.insert([NewTask(kind="a", key="k", origin="them", on_conflict="replace")])
    assert [claim.origin for claim in await worker.claim("a", limit=3)] == ["me", None, "them"]
