"""The turns of tenants in the SQLite store: implements `stores.claim_primitives.FairRows` with the statements of
`sql/fair_shares.sql`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from synergon.model.lifecycle import State
from synergon.stores import claim_primitives as port
from synergon.stores.rows import FairTags, TenantName, UntaggedTask
from synergon.stores.rules.claim_plan import ReadyClass
from synergon.stores.sqlite.transaction import Transaction, as_json


class FairRows(port.FairRows):
    """Implements `stores.claim_primitives.FairRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def tags(self, tenants: Collection[TenantName]) -> dict[TenantName, FairTags]:
        paused = {name for (name,) in self._transaction.rows("paused_queues")}
        classes = {tenant[:2]: self._tags_of_class(*tenant[:2], paused) for tenant in tenants}
        names = list(tenants)
        largest = dict(self._transaction.rows("largest_live_tags", as_json(names)))
        return {tenant: classes[tenant[:2]]._replace(largest_live=largest[place]) for place, tenant in enumerate(names)}

    def _tags_of_class(self, kind: str, priority: int, paused: Collection[str]) -> FairTags:
        """The tags of a kind and priority, without the largest tag of a tenant. Reads one task of each ready group."""
        smallest: dict[bool, int] = {}
        for queue, requirements in self._transaction.rows("groups_of_kind", kind=kind):
            ((tag,),) = self._transaction.rows("smallest_ready_tag", kind, queue, requirements, priority)
            if tag is not None:
                smallest[queue in paused] = min(tag, smallest.get(queue in paused, tag))
        ((started,),) = self._transaction.rows("largest_started_tag", kind, priority)
        return FairTags(smallest.get(False), smallest.get(True), started)

    async def oldest(self, classes: Collection[ReadyClass], limit: int) -> dict[ReadyClass, list[int]]:
        return {
            name: [task_id for (task_id,) in self._transaction.rows("oldest_with_tags", *name, limit)]
            for name in classes
        }

    async def untagged(self, ids: Collection[int]) -> list[UntaggedTask]:
        return self._transaction.typed(UntaggedTask, "untagged_tasks", as_json(ids))

    async def set_tags(self, tags: Mapping[int, int]) -> None:
        self._transaction.run("set_fair_tags", as_json(tags.items()))

    async def ahead(self, task_id: int, limit: int) -> dict[str, int]:
        row = self._transaction.row("position", task_id)
        if row is None or row[1] != State.READY:
            return {}
        kind, _, priority, fair_tag, *_ = row
        position = {"priority": priority, "fair_tag": fair_tag, "id": task_id, "limit": limit}
        found: Counter[str] = Counter()
        for queue, requirements in self._transaction.rows("groups_of_kind", kind=kind):
            group = {"kind": kind, "queue": queue, "requirements": requirements}
            found.update(dict(self._transaction.rows("tenants_ahead", **group, **position)))
        return dict(found)
