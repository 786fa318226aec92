"""Requirements of a task: amounts of resources, and labels that the node must or must not have.

A task's row contains their text, and stores index ready tasks by it: tasks that a node cannot run are never read,
however many there are. Amounts are integers, so that sums are exact: bytes of memory, and millionths of everything
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

UNIT: Final = 1_000_000
"""One processor, GPU or licence."""

SLOT: Final = "a slot"
PROCESS: Final = "a child process"
"""The name under which child processes are counted like a resource; names of resources contain no blanks. Each task
function that runs in a child process takes one."""

QUEUE: Final = "queue "
PROVIDER: Final = "provider "
"""How the names of bounds begin. A node counts its bound on a queue or a provider like a resource, too: each task takes
one."""

KIND_DEFAULT: Final = ""
"""The text of a task without requirements of its own: those of its kind apply, on the node that claims it."""


class Requirements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requirements of one task. Names are sorted, so that equal requirements have equal texts."""

    cost: dict[str, int] = {}
    """The amounts that the task uses while it runs."""
    needs: tuple[str, ...] = ()
    """The node must have all of these labels."""
    forbids: tuple[str, ...] = ()
    """The node must have none of these labels."""
    left_to_kind: tuple[str, ...] = ()
    """Which of these three the claiming node takes from the kind, because the producer did not know them."""
    is_long: bool = False
    """The task may run for longer than the timeout of its kind."""
    is_process: bool | None = None
    """Whether the task function runs in a child process; None means as the kind says."""

    @property
    def text(self) -> str:
        """The text for the row. Never empty, because an empty text means the requirements of the kind."""
        return msgspec.json.encode(self).decode()


NO_REQUIREMENTS: Final = Requirements()
ONE_PROCESS: Final = Requirements(cost={PROCESS: UNIT})


def make_requirements(cost: Mapping[str, int], needs: frozenset[str], forbids: frozenset[str]) -> Requirements:
    """Requirements with sorted names and without zero amounts."""
    amounts = {name: cost[name] for name in sorted(cost) if cost[name]}
    return Requirements(cost=amounts, needs=tuple(sorted(needs)), forbids=tuple(sorted(forbids)))


def with_process(said: Requirements, *, is_process: bool) -> Requirements:
    """These requirements with or without a child process."""
    if is_process == (PROCESS in said.cost):
        return said
    cost = {name: amount for name, amount in said.cost.items() if name != PROCESS}
    return msgspec.structs.replace(said, cost=cost | {PROCESS: UNIT} if is_process else cost)


def with_kind_defaults(said: Requirements, of_kind: Requirements) -> Requirements:
    """These requirements, completed by those of the kind. Both include child processes."""
    is_process = PROCESS in of_kind.cost if said.is_process is None else said.is_process
    if said.left_to_kind:
        found = {name: getattr(of_kind, name) for name in said.left_to_kind}
        said = msgspec.structs.replace(said, **found, left_to_kind=())
    return with_process(said, is_process=is_process)


def queue_bound(queue: str) -> str:
    """The name under which a node counts the tasks of a bounded queue."""
    return f"{QUEUE}{queue}"


def provider_bound(provider: str | None) -> str:
    """The name under which a node counts the tasks of a bounded provider."""
    return f"{PROVIDER}{provider}"


def is_name_of_bound(name: str) -> bool:
    """Whether the name is that of a bound."""
    return name.startswith((QUEUE, PROVIDER))


def bounds_of(totals: Mapping[str, int], provider: str | None, *, is_command: bool) -> tuple[str, ...]:
    """The bounds of a node that tasks of a kind may meet: those of all bounded queues, and that of its provider.
    Commands meet none, so that a full node obeys them."""
    if is_command:
        return ()
    return tuple(name for name in totals if name.startswith(QUEUE) or name == provider_bound(provider))


def bound_cost(bounds: Iterable[str], queue: str | None) -> dict[str, int]:
    """What a task of this queue takes of the bounds of its kind."""
    return {name: UNIT for name in bounds if name == queue_bound(queue or "") or name.startswith(PROVIDER)}


@lru_cache(maxsize=4096)
def parse_requirements(text: str) -> Requirements:
    """Parse the text of a row. The result is cached and must not be changed."""
    return msgspec.json.decode(text, type=Requirements)


def is_suitable(requirements: Requirements, labels: frozenset[str], totals: Mapping[str, int]) -> bool:
    """Whether a node with these labels and totals can ever run a task with these requirements."""
    return not (
        missing_labels(requirements, labels)
        or forbidden_labels(requirements, labels)
        or oversized(requirements, totals)
    )


def missing_labels(requirements: Requirements, labels: frozenset[str]) -> list[str]:
    """The needed labels that the node lacks."""
    return [label for label in requirements.needs if label not in labels]


def forbidden_labels(requirements: Requirements, labels: frozenset[str]) -> list[str]:
    """The labels of the node that the task forbids."""
    return [label for label in requirements.forbids if label in labels]


def oversized(requirements: Requirements, amounts: Mapping[str, int]) -> list[str]:
    """The resources whose cost exceeds the node's total."""
    return [name for name, amount in requirements.cost.items() if amount > amounts.get(name, 0)]
