"""A dry run of a node's next claim: shows whether the node would take the task or other tasks first, without taking
any.

The store decides by the rule of the claim (`Store.dry_run`), for all kinds that the node could claim. A dry run is made
only if no other cause was found, or if capacity may be reserved.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from synergon.explain.node_view import NodeView
from synergon.model.claims import ClaimRequest, DryRun
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord
from synergon.stores.base import Store

Counts = Mapping[tuple[str, str, State], int]
"""The numbers of tasks by queue, kind and state."""


async def dry_run(store: Store, node: NodeView, task: TaskRecord) -> DryRun:
    """What the next claim of the node would do with this task."""
    request = node.request(_wanted(node, task, await store.counts(is_exact=True)))
    if all(kind.kind != task.kind for kind in request.kinds):
        return DryRun(is_taken=False)
    return await store.dry_run(_with_reserved_kind(node, request), task.id)


def _with_reserved_kind(node: NodeView, request: ClaimRequest) -> ClaimRequest:
    """The request, extended by the kind of the reserved task, so that the plan keeps permits for that task."""
    reserved_kind = node.state.reserved_kind
    if reserved_kind is None or any(kind.kind == reserved_kind for kind in request.kinds):
        return request
    return replace(request, kinds=(*request.kinds, replace(node.kind_request(reserved_kind), count=0)))


def _wanted(node: NodeView, task: TaskRecord, counts: Counts) -> list[str]:
    """The kinds that the node's next claim would request: the kind of this task, and all kinds with ready tasks. Other
    kinds with `can_accept` are left out, because their requests would be limited to accepted tasks."""
    ready = {
        kind
        for (queue, kind, state), _ in counts.items()
        if state is State.READY and kind in node.record.kinds and node.serves(queue, kind)
    }
    return [
        kind for kind in sorted(ready | {task.kind}) if kind == task.kind or not node.state.kind(kind).has_can_accept
    ]
