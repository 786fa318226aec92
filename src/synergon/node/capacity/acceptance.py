"""Kinds with `can_accept`: the node reads candidates, calls the function for each, and claims the accepted ones by id.
Rejected tasks are left to other nodes.

The scheduler never waits for `can_accept`: while the function decides about candidates of a kind, the kind is not
dirty; it becomes dirty again when a task was accepted. Kinds without `can_accept` are not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import msgspec

from synergon.model.claims import ClaimRequest, Claims, KindRequest
from synergon.model.clock import Clock
from synergon.node.callbacks.callbacks import Callbacks
from synergon.node.capacity.acceptance_poll import AcceptancePoll
from synergon.node.claims.admission import Admission
from synergon.node.signals import Signals
from synergon.stores.base import Store
from synergon.task import AnyTask

NONE: Final[Mapping[str, AcceptancePoll]] = {}


class Acceptance:
    """Reduces claim requests to accepted tasks, for kinds with `can_accept`."""

    def __init__(self, inquiries: Mapping[str, AcceptancePoll] = NONE) -> None:
        self._polls = inquiries
        """The poll of each kind with `can_accept`."""
        self.is_needed: Final = bool(inquiries)
        """Whether any kind of this node has `can_accept`."""
        self._offered: dict[str, tuple[int, ...]] = {}
        """For each kind with `can_accept`, the tasks that were accepted when the last claim request was made."""

    @property
    def steps(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The step function of each poll, by name. A duty calls it repeatedly."""
        return {f"acceptance of {kind}": poll.step for kind, poll in self._polls.items()}

    def note_new_candidates(self, kinds: Collection[str]) -> None:
        """Note that there may be new candidates of these kinds."""
        for kind, poll in self._polls.items():
            if kind in kinds:
                poll.note_new_candidates()

    def begin(self, kinds: Collection[str]) -> set[str]:
        """Start the polls of these kinds, where a poll is needed. Returns the kinds that must not be claimed yet."""
        return {kind for kind, poll in self._polls.items() if kind in kinds and poll.begin()}

    def narrowed(self, request: ClaimRequest) -> ClaimRequest:
        """The request. For kinds with `can_accept`, it is reduced to the accepted tasks."""
        self._offered = {kind: poll.offers() for kind, poll in self._polls.items()}
        return msgspec.structs.replace(request, kinds=tuple(map(self._narrowed, request.kinds)))

    def _narrowed(self, kind_request: KindRequest) -> KindRequest:
        if kind_request.kind not in self._polls:
            return kind_request
        offered = self._offered[kind_request.kind]
        only = (
            offered
            if kind_request.only is None
            else tuple(task_id for task_id in offered if task_id in kind_request.only)
        )
        return msgspec.structs.replace(kind_request, only=only)

    def claimed(self, request: ClaimRequest, claims: Claims, leftover: Collection[str]) -> set[str]:
        """Pass the result of the claim to the polls. Returns the kinds for which another claim is worthwhile. Kinds in
        `leftover` may have more ready tasks than there was capacity for."""
        # A claim that makes a new reservation reads no later task; one that renews a reservation reads all.
        was_cut_short = claims.reserved is not None and claims.reserved.id != request.reserved_task
        return {
            kind_request.kind
            for kind_request in request.kinds
            if kind_request.kind in self._polls
            and self._polls[kind_request.kind].note_claim_result(
                self._offered[kind_request.kind],
                [claim.id for claim in claims if claim.kind == kind_request.kind],
                was_enough=kind_request.kind not in leftover and not was_cut_short,
                is_any_unfit=kind_request.kind in claims.unfit or kind_request.only != self._offered[kind_request.kind],
            )
        }

    async def ask_now(self) -> None:
        """Call `can_accept` for as many candidates as there is capacity for. Returns when that is done."""
        for poll in self._polls.values():
            poll.start_over()
            await poll.read_all()

    def is_rejected(self, kind: str, task_id: int) -> bool:
        """Whether this node has rejected the task, and the rejection has not expired."""
        return kind in self._polls and self._polls[kind].is_rejected(task_id)

    def rejected_for(self, kind: str, task_id: int) -> float | None:
        """For how many more seconds this node rejects the task. None if it does not."""
        return self._polls[kind].rejected_for(task_id) if kind in self._polls else None

    def is_accepted(self, kind: str, task_id: int) -> bool:
        """Whether the next claim may take the task: its kind has no `can_accept`, or the task was accepted."""
        return kind not in self._polls or task_id in self._polls[kind].offers()

    def close(self) -> None:
        """Stop all polls."""
        for poll in self._polls.values():
            poll.close()


def acceptance_polls(
    store: Store,
    admission: Admission,
    kinds: Mapping[str, AnyTask],
    clock: Clock,
    logger: logging.LoggerAdapter[logging.Logger],
    callbacks: Callbacks,
    signals: Signals,
) -> dict[str, AcceptancePoll]:
    """A poll for each kind with `can_accept`."""
    return {
        kind: AcceptancePoll(task_type, store, admission, clock, logger, callbacks, signals)
        for kind, task_type in kinds.items()
        if task_type.acceptor is not None
    }
