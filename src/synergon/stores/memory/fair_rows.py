"""The turns of tenants in the memory store: implements `stores.claim_primitives.FairRows` over the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from synergon.model.lifecycle import State
from synergon.stores import claim_primitives as port
from synergon.stores.memory.queries import preceding
from synergon.stores.rows import FairTags, TenantName, UntaggedTask
from synergon.stores.rules.claim_plan import ReadyClass

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class FairRows(port.FairRows):
    """Implements `stores.claim_primitives.FairRows` for the memory store."""

    __slots__ = ("_tables",)

    def __init__(self, session: Session) -> None:
        self._tables = session.tables

    async def tags(self, tenants: Collection[TenantName]) -> dict[TenantName, FairTags]:
        paused = {queue for queue, paused_at in self._tables.queues.items() if paused_at is not None}
        index = self._tables.tenants
        classes = {
            name: FairTags(
                index.smallest_ready(*name, paused), index.smallest_paused(*name, paused), index.largest_started(*name)
            )
            for name in {tenant[:2] for tenant in tenants}
        }
        return {tenant: classes[tenant[:2]]._replace(largest_live=index.largest_live(tenant)) for tenant in tenants}

    async def oldest(self, classes: Collection[ReadyClass], limit: int) -> dict[ReadyClass, list[int]]:
        return {name: self._tables.tenants.oldest(name, limit) for name in classes}

    async def untagged(self, ids: Collection[int]) -> list[UntaggedTask]:
        rows = (self._tables.rows[task_id] for task_id in sorted(ids))
        return [
            UntaggedTask(row.id, row.task.kind, row.priority, row.task.fair_key, row.task.fair_step)
            for row in rows
            if row.state is State.READY and row.task.fair_key is not None and not row.fair_tag
        ]

    async def set_tags(self, tags: Mapping[int, int]) -> None:
        for task_id, tag in tags.items():
            self._tables.set_fair_tag(self._tables.rows[task_id], tag)

    async def ahead(self, task_id: int, limit: int) -> dict[str, int]:
        row = self._tables.rows.get(task_id)
        if row is None or row.state is not State.READY:
            return {}
        before = (other.task.fair_key for other in islice(preceding(self._tables, row), limit))
        return dict(Counter(tenant for tenant in before if tenant is not None))
