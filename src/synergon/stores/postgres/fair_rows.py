"""The turns of tenants in the PostgreSQL store: implements `stores.claim_primitives.FairRows` with the statements of
`sql/fair_shares.sql`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from synergon.model.lifecycle import State
from synergon.stores import claim_primitives as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import FairTags, TenantName, UntaggedTask
from synergon.stores.rules.claim_plan import ReadyClass


class FairRows(port.FairRows):
    """Implements `stores.claim_primitives.FairRows` for the PostgreSQL store. Locks nothing: two concurrent
    transactions may read equal tags."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def tags(self, tenants: Collection[TenantName]) -> dict[TenantName, FairTags]:
        kinds, priorities, fair_keys = zip(*tenants, strict=True)
        rows = await self._transaction.rows("fair_tags", list(kinds), list(priorities), list(fair_keys))
        return {(kind, priority, fair_key): FairTags(*tags) for kind, priority, fair_key, *tags in rows}

    async def oldest(self, classes: Collection[ReadyClass], limit: int) -> dict[ReadyClass, list[int]]:
        kinds, queues, requirements, priorities = zip(*classes, strict=True)
        asked = (list(kinds), list(queues), list(requirements), list(priorities), limit)
        found: dict[ReadyClass, list[int]] = {}
        for *name, task_id in await self._transaction.rows("oldest_with_tags", *asked):
            found.setdefault(tuple(name), []).append(task_id)
        return found

    async def untagged(self, ids: Collection[int]) -> list[UntaggedTask]:
        return await self._transaction.typed(UntaggedTask, "untagged_tasks", sorted(ids))

    async def set_tags(self, tags: Mapping[int, int]) -> None:
        ids = sorted(tags)
        await self._transaction.run("set_fair_tags", ids, [tags[task_id] for task_id in ids])

    async def ahead(self, task_id: int, limit: int) -> dict[str, int]:
        found = await self._transaction.rows("position_of", task_id)
        if not found or found[0]["state"] != State.READY:
            return {}
        kind, _, priority, fair_tag, *_ = found[0]
        rows = await self._transaction.rows("tenants_ahead", kind, priority, fair_tag, task_id, limit)
        return {row["fair_key"]: row["count"] for row in rows}
