"""What a task demands of the node that runs it: amounts of resources, and labels that the node must or must not have.

A row holds the text of it, and stores keep ready tasks with the same text together: what a node cannot run is never
looked at, however much of it there is. Amounts are whole numbers, so that sums stay exact: bytes of memory, and
millionths of everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

UNIT: Final = 1_000_000
"""One processor, GPU or licence."""

SLOT: Final = "a slot"
PROCESS: Final = "a child process"
"""What a node has of its own, beside resources, whose names have no blanks. Each body that runs in a child process
takes one of these, as it takes its cost."""

KIND_DEFAULT: Final = ""
"""The row says nothing: the node that runs the kind knows."""


class Requirements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one task demands. Names are in order, so that equal demands have equal texts."""

    cost: dict[str, int] = {}
    """What it uses while it runs."""
    needs: tuple[str, ...] = ()
    """Only a node with all of these labels."""
    forbids: tuple[str, ...] = ()
    """Only a node with none of these."""
    left_to_kind: tuple[str, ...] = ()
    """Which of these three the kind has to say where the task runs: the producer did not know it."""
    is_long: bool = False
    """It may run for longer than its kind says."""
    is_process: bool | None = None
    """Whether its body runs in a child process; None: as the kind says."""

    @property
    def text(self) -> str:
        """What stands in the row; never empty, so that "nothing at all" is told from "as the kind says"."""
        return msgspec.json.encode(self).decode()


NO_REQUIREMENTS: Final = Requirements()
ONE_PROCESS: Final = Requirements(cost={PROCESS: UNIT})


def make_requirements(cost: Mapping[str, int], needs: frozenset[str], forbids: frozenset[str]) -> Requirements:
    """A requirements whose names are in order; amounts of zero are left out."""
    amounts = {name: cost[name] for name in sorted(cost) if cost[name]}
    return Requirements(cost=amounts, needs=tuple(sorted(needs)), forbids=tuple(sorted(forbids)))


def with_process(said: Requirements, *, is_process: bool) -> Requirements:
    """The same with the child process that its body takes, or without one."""
    if is_process == (PROCESS in said.cost):
        return said
    cost = {name: amount for name, amount in said.cost.items() if name != PROCESS}
    return msgspec.structs.replace(said, cost=cost | {PROCESS: UNIT} if is_process else cost)


def with_kind_defaults(said: Requirements, of_kind: Requirements) -> Requirements:
    """What is left to the kind, from the kind, whose requirements is weighed; and so is what comes of it."""
    is_process = PROCESS in of_kind.cost if said.is_process is None else said.is_process
    if said.left_to_kind:
        found = {name: getattr(of_kind, name) for name in said.left_to_kind}
        said = msgspec.structs.replace(said, **found, left_to_kind=())
    return with_process(said, is_process=is_process)


@lru_cache(maxsize=4096)
def parse_requirements(text: str) -> Requirements:
    """What the text of a row says. One value per text: it must not be changed."""
    return msgspec.json.decode(text, type=Requirements)


def is_suitable(requirements: Requirements, labels: frozenset[str], totals: Mapping[str, int]) -> bool:
    """Whether a node with these labels and so much of everything could ever run it."""
    return not (
        missing_labels(requirements, labels)
        or forbidden_labels(requirements, labels)
        or oversized(requirements, totals)
    )


def missing_labels(requirements: Requirements, labels: frozenset[str]) -> list[str]:
    """The labels that it needs and that are not among these."""
    return [label for label in requirements.needs if label not in labels]


def forbidden_labels(requirements: Requirements, labels: frozenset[str]) -> list[str]:
    """Those of these labels that it forbids."""
    return [label for label in requirements.forbids if label in labels]


def oversized(requirements: Requirements, amounts: Mapping[str, int]) -> list[str]:
    """The resources of which it uses more than this."""
    return [name for name, amount in requirements.cost.items() if amount > amounts.get(name, 0)]
