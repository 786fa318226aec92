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
        smallest = self._smallest_ready({(kind, priority) for kind, priority, _ in tenants})
        names = list(tenants)
        largest = dict(self._transaction.rows("largest_live_tags", as_json(names)))
        return {tenant: FairTags(smallest[tenant[:2]], largest[index]) for index, tenant in enumerate(names)}

    def _smallest_ready(self, classes: Collection[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
        """The smallest tag of the ready tasks of each kind and priority: that of the first task of each ready group."""
        paused = {name for (name,) in self._transaction.rows("paused_queues")}
        groups = {kind: self._transaction.rows("groups_of_kind", kind=kind) for kind in {kind for kind, _ in classes}}
        return {
            (kind, priority): min(
                (
                    tag
                    for queue, requirements in groups[kind]
                    if queue not in paused
                    for (tag,) in self._transaction.rows("smallest_ready_tag", kind, queue, requirements, priority)
                    if tag is not None
                ),
                default=None,
            )
            for kind, priority in classes
        }

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
