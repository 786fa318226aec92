"""What a node asks for in one request, of the slots that it has: the rules by which kinds share them.

A node follows them, and whoever explains what the node would ask for follows the same ones: they look at nothing but
what a node says of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from synergon.model.claims import KindRequest
from synergon.model.node_status import KindStatus
from synergon.node.claims.fairness import Fairness, Slots
from synergon.task import AnyTask


class ClaimRequestBuilder:
    """Chooses the rooms of a request. All kinds are asked for together, so that the claim takes them in their order;
    what they share of the node is in the request, and the claim takes no more of it than there is."""

    def __init__(
        self, kinds: Mapping[str, KindStatus], slots: Slots, kind_request: Callable[[str], KindRequest]
    ) -> None:
        self._slots = slots
        self._kind_request = kind_request
        providers = {
            kind: said.provider for kind, said in kinds.items() if said.provider is not None and not said.is_command
        }
        self._fairness = Fairness(providers, slots, lambda kind: kind_request(kind).count)

    def kind_requests(self, wanted: Collection[str]) -> list[KindRequest]:
        """What to ask for of the wanted kinds."""
        shares = self._fairness.shares(wanted)
        return [kind_request for kind in wanted if (kind_request := self._shared(kind, shares.get(kind))).count > 0]

    @property
    def limit(self) -> int:
        """How many to take in all, but for commands, and urgent ones to which others yield."""
        return max(self._slots.free, 0)

    def _shared(self, kind: str, share: int | None) -> KindRequest:
        kind_request = self._kind_request(kind)
        if share is None or kind_request.is_urgent:  # what is urgent waits for no provider's turn
            return kind_request
        return msgspec.structs.replace(kind_request, count=min(kind_request.count, share))


def sparing_one(kind_request: KindRequest, of_kind: int | None, reserved_task: int) -> KindRequest:
    """What to ask for of the kind of a task that room is kept for, if so many more of it may run: one place is left to
    that task."""
    if of_kind is None or kind_request.count < of_kind:
        return kind_request
    if of_kind > 1:
        return msgspec.structs.replace(kind_request, count=of_kind - 1)
    return msgspec.structs.replace(kind_request, only=(reserved_task,))


def kind_status(kind_request: KindRequest, task_type: AnyTask) -> KindStatus:
    """What a node says of one of its kinds."""
    return KindStatus(
        max_running=task_type.policy.max_running,
        is_process=kind_request.is_process,
        requirements=task_type.requirements_text,
        rank=kind_request.rank,
        is_urgent=kind_request.is_urgent,
        is_asking=task_type.acceptor is not None,
        is_command=kind_request.is_command,
        limits=kind_request.limits,
        provider=kind_request.provider,
    )
