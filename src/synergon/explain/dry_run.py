"""A dry run of a node's next claim: shows whether the node would take the task or others first, without taking
anything.

The store decides it by the rule of the claim (`Store.dry_run`), for all kinds of which the node could claim something.
It is asked only where nothing else stands in the way, or where capacity may be reserved.
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
    """What the next claim of the node does with this task."""
    request = node.request(_wanted(node, task, await store.counts()))
    if all(kind.kind != task.kind for kind in request.kinds):
        return DryRun(is_taken=False)
    return await store.dry_run(_with_reserved_kind(node, request), task.id)


def _with_reserved_kind(node: NodeView, request: ClaimRequest) -> ClaimRequest:
    """The request, with the kind of the reserved task: the claim holds the permits of that task."""
    reserved_kind = node.state.reserved_kind
    if reserved_kind is None or any(kind.kind == reserved_kind for kind in request.kinds):
        return request
    return replace(request, kinds=(*request.kinds, replace(node.kind_request(reserved_kind), count=0)))


def _wanted(node: NodeView, task: TaskRecord, counts: Counts) -> list[str]:
    """The kinds of which the node could claim something. It claims kinds with an acceptor one by one."""
    ready = {
        kind
        for (queue, kind, state), _ in counts.items()
        if state is State.READY and kind in node.record.kinds and node.serves(queue, kind)
    }
    return [
        kind for kind in sorted(ready | {task.kind}) if kind == task.kind or not node.state.kind(kind).has_can_accept
    ]
