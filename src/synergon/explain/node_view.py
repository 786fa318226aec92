"""A node as `explain` sees it: reconstructs the node's next claim request from its published status."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.node_status import NodeStatus, free_slots_on
from synergon.model.nodes import NodeRecord
from synergon.model.process_identity import is_gone
from synergon.model.requirements import bounds_of
from synergon.node.capacity.acceptance import Acceptance
from synergon.node.capacity.reservation import leave_one_for_reserved
from synergon.node.claims.fairness import Fairness
from synergon.node.node import Node
from synergon.options.durations import microseconds


class NodeView(NamedTuple):
    """A registered node, and its published status."""

    record: NodeRecord
    state: NodeStatus
    age: float
    """The age of the status in seconds."""
    acceptance: Acceptance | None = None
    """The answers of `can_accept`, if this is the node of this process; otherwise None."""

    @property
    def is_silent(self) -> bool:
        """Whether the node appears to be dead: its lease has ended, or its process is dead."""
        return self.record.lease_remaining <= 0 or is_gone(self.record.process)

    @property
    def is_cordoned(self) -> bool:
        """Whether the node is cordoned, by its row or by its status."""
        return self.record.is_cordoned or self.state.is_cordoned

    def serves(self, queue: str, kind: str) -> bool:
        """Whether the node takes tasks of this kind from the queue."""
        queues = self.record.queues
        return queues is None or queue in queues or self.state.kind(kind).is_command

    def kind_request(self, kind: str) -> KindRequest:
        """The kind request that the node's next claim would contain."""
        said = self.state.kind(kind)
        return KindRequest(
            kind=kind,
            count=max(free_slots_on(self.state, kind).free, 0),
            limits=said.limits,
            provider=said.provider,
            is_command=said.is_command,
            requirements=said.weight,
            is_threaded=said.is_threaded,
            rank=said.rank,
            is_urgent=said.is_urgent,
            is_backed_off=kind in self.state.backed_off,
            is_brief=kind in self.state.brief,
            is_isolable=said.is_isolable,
            bounds=bounds_of(self.state.totals, said.provider, is_command=said.is_command),
        )

    def request(self, wanted: Collection[str]) -> ClaimRequest:
        """The node's next claim request, if it requests the `wanted` kinds."""
        state, queues = self.state, self.record.queues
        fairness = Fairness({kind: state.kind(kind) for kind in self.record.kinds}, _PublishedSlots(state))
        kind_requests = fairness.share(
            [kind_request for kind in wanted if (kind_request := self.kind_request(kind)).count > 0]
        )
        return ClaimRequest(
            node_id=self.record.id,
            kinds=tuple(
                self._leave_one_for_reserved(kind_request) for kind_request in kind_requests if kind_request.count > 0
            ),
            limit=max(state.slots_free, 0),
            queues=None if queues is None else frozenset(queues),
            labels=frozenset(state.labels),
            totals=state.totals,
            free=state.free,
            yielding=state.yielding,
            reserved_task=state.reserved_task,
            held=state.held,
            patience=None if state.patience is None else microseconds(state.patience),
            shares=state.shares,
        )

    def _leave_one_for_reserved(self, kind_request: KindRequest) -> KindRequest:
        state = self.state
        if state.reserved_task is None or kind_request.kind != state.reserved_kind:
            return kind_request
        return leave_one_for_reserved(
            kind_request, free_slots_on(state, kind_request.kind).of_kind, state.reserved_task
        )


class _PublishedSlots:
    """The slots of a node, from its published status."""

    def __init__(self, state: NodeStatus) -> None:
        self.free = state.slots_free
        self.taken = state.taken
        self._running = state.running

    def count(self, kind: str) -> int:
        """How many tasks of the kind run, or are promised capacity."""
        return self._running.get(kind, 0)


def node_view(record: NodeRecord, here: Node | None) -> NodeView:
    """The view of a node. The status of this process's node is read from the node itself, that of others from the
    store."""
    if here is not None and record.id == here.id:
        return NodeView(record, here.state(), 0.0, here.acceptance)
    return NodeView(record, _aged(record.state, record.published_ago), record.published_ago)


def _aged(state: NodeStatus, seconds: float) -> NodeStatus:
    """The status as it is `seconds` later: back-offs are shortened, and those that have ended removed."""
    return replace(state, backed_off=_later(state.backed_off, seconds)) if state.backed_off else state


def _later(backoffs: dict[str, float], seconds: float) -> dict[str, float]:
    return {kind: left - seconds for kind, left in backoffs.items() if left > seconds}
