"""Ways to break refusals on purpose: what the auditor of worlds in the middle of a deploy must notice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.simulation.mutants import Mutant, Patch

from synergon.model.claims import ClaimRequest
from synergon.model.outcomes import Outcome, Refused
from synergon.model.requirements import LEFT_TO_KIND, Requirements, is_suitable, parse_requirements
from synergon.stores.memory.node_rows import NodeRows
from synergon.stores.memory.session import Session
from synergon.stores.rows import LiveTask
from synergon.stores.rules import claim, finish, node_capacity, operations
from synergon.stores.rules.claim_plan import ReadyGroupName


def refusal_not_noted(patch: Patch) -> None:
    """The row does not say who has refused the task."""

    def note_nothing(text: str, node_id: str) -> Requirements:
        return parse_requirements(text) if text else LEFT_TO_KIND

    patch.setattr(finish, "with_refusal", note_nothing)


def claim_ignores_refusals(patch: Patch) -> None:
    """A node gets what it has refused."""

    def suits_anybody(
        requirements: Requirements, labels: frozenset[str], totals: Mapping[str, int], node_id: str | None = None
    ) -> bool:
        return is_suitable(requirements, labels, totals)

    patch.setattr(node_capacity, "is_suitable", suits_anybody)


def refusal_charged(patch: Patch) -> None:
    """A refusal costs an attempt."""
    charge = finish._charge

    async def charge_it(session: Session, task: LiveTask, outcome: Outcome, ended_attempts: Any) -> None:
        if not isinstance(outcome, Refused):
            await charge(session, task, outcome, ended_attempts)

    patch.setattr(finish, "_charge", charge_it)


def first_refusal_is_the_last(patch: Patch) -> None:
    """Other nodes are not waited for."""

    async def nobody(self: NodeRows, kind: str, queue: str) -> list[str]:
        return []

    patch.setattr(NodeRows, "runners", nobody)


def dead_nodes_waited_for(patch: Patch) -> None:
    """A node without a lease counts as one that might run the task."""

    async def everybody(self: NodeRows, kind: str, queue: str) -> list[str]:
        return list(self._tables.nodes)

    patch.setattr(NodeRows, "runners", everybody)


def no_last_look(patch: Patch) -> None:
    """A task whose last hope has left waits for ever."""

    async def as_it_is(session: Session, request: ClaimRequest, groups: Iterable[ReadyGroupName]) -> ClaimRequest:
        return request

    patch.setattr(claim, "_with_hopeless", as_it_is)


def retry_remembers_refusals(patch: Patch) -> None:
    """An operator's retry does not forget who has refused the task."""
    patch.setattr(operations, "without_refusals", lambda text: text)


DEPLOY_MUTANTS: Final[tuple[Mutant, ...]] = (
    refusal_not_noted,
    claim_ignores_refusals,
    refusal_charged,
    first_refusal_is_the_last,
    dead_nodes_waited_for,
    no_last_look,
    retry_remembers_refusals,
)
