"""Kinds with `can_accept`: looked at first, asked about, then claimed by id. What is refused here is left to others.

None of it happens on the scheduler: a kind that has to be asked leaves its set of kinds, and comes back when something
of it was accepted. For other kinds it costs nothing.
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
    """Stands between the scheduler and its claims."""

    def __init__(self, inquiries: Mapping[str, AcceptancePoll] = NONE) -> None:
        self._inquiries = inquiries
        """By kind."""
        self.is_needed = bool(inquiries)
        """Whether any kind of this node has `can_accept`."""
        self._offered: dict[str, tuple[int, ...]] = {}
        """What of each kind was accepted when the last request was made."""

    @property
    def steps(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What has to be done over and over, by a name for each."""
        return {f"acceptance of {kind}": inquiry.step for kind, inquiry in self._inquiries.items()}

    def note_news(self, kinds: Collection[str]) -> None:
        """There may be new candidates of these kinds."""
        for kind, inquiry in self._inquiries.items():
            if kind in kinds:
                inquiry.note_news()

    def begin(self, kinds: Collection[str]) -> set[str]:
        """Those of the kinds that have to be asked about before they can be claimed; it is done from now on."""
        return {kind for kind, inquiry in self._inquiries.items() if kind in kinds and inquiry.begin()}

    def narrowed(self, request: ClaimRequest) -> ClaimRequest:
        """The same request, for nothing but what was accepted."""
        self._offered = {kind: inquiry.offers() for kind, inquiry in self._inquiries.items()}
        return msgspec.structs.replace(request, kinds=tuple(map(self._narrowed, request.kinds)))

    def _narrowed(self, kind_request: KindRequest) -> KindRequest:
        if kind_request.kind not in self._inquiries:
            return kind_request
        offered = self._offered[kind_request.kind]
        only = (
            offered
            if kind_request.only is None
            else tuple(task_id for task_id in offered if task_id in kind_request.only)
        )
        return msgspec.structs.replace(kind_request, only=only)

    def claimed(self, request: ClaimRequest, claims: Claims, leftover: Collection[str]) -> set[str]:
        """What the claim took; the kinds of which it may be worth to look at more. Of the `leftover` ones there may be
        more than there was room for."""
        # A claim that begins to keep room looks at nothing behind that task; one that goes on to do so looks at all.
        was_cut_short = claims.reserved is not None and claims.reserved.id != request.reserved_task
        return {
            kind_request.kind
            for kind_request in request.kinds
            if kind_request.kind in self._inquiries
            and self._inquiries[kind_request.kind].tried(
                self._offered[kind_request.kind],
                [claim.id for claim in claims if claim.kind == kind_request.kind],
                was_enough=kind_request.kind not in leftover and not was_cut_short,
                is_any_unfit=kind_request.kind in claims.unfit or kind_request.only != self._offered[kind_request.kind],
            )
        }

    async def ask_now(self) -> None:
        """Ask about all there is room for, and return when that is done."""
        for inquiry in self._inquiries.values():
            inquiry.start_over()
            await inquiry.go_through()

    def is_rejected(self, kind: str, task_id: int) -> bool:
        """Whether this node has said no to the task, and still means it."""
        return kind in self._inquiries and self._inquiries[kind].is_rejected(task_id)

    def rejected_for(self, kind: str, task_id: int) -> float | None:
        """For how many seconds this node still says no to the task; None: it does not."""
        return self._inquiries[kind].rejected_for(task_id) if kind in self._inquiries else None

    def is_accepted(self, kind: str, task_id: int) -> bool:
        """Whether the next claim may take the task: it need not be asked about, or was, and is accepted."""
        return kind not in self._inquiries or task_id in self._inquiries[kind].offers()

    def close(self) -> None:
        """Ask nothing any more."""
        for inquiry in self._inquiries.values():
            inquiry.close()


def acceptance_polls(
    store: Store,
    admission: Admission,
    kinds: Mapping[str, AnyTask],
    clock: Clock,
    logger: logging.LoggerAdapter[logging.Logger],
    callbacks: Callbacks,
    signals: Signals,
) -> dict[str, AcceptancePoll]:
    """One for each kind with `can_accept`."""
    return {
        kind: AcceptancePoll(task_type, store, admission, clock, logger, callbacks, signals)
        for kind, task_type in kinds.items()
        if task_type.acceptor is not None
    }
