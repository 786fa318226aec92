"""Requirements of a task: amounts of resources, and labels that the node must or must not have.

A task's row contains the requirements as text, and stores index ready tasks by this text. So tasks that a node cannot
run are never read, even if there are many. Amounts are integers, so that sums are exact: bytes of memory, and
millionths of everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec

from synergon.model.record import READ_ERRORS

UNIT: Final = 1_000_000
"""The amount of one processor, GPU or licence."""

SLOT: Final = "a slot"
PROCESS: Final = "a child process"
"""The name under which child processes are counted like a resource. Each task function that runs in a child process
uses one. Names of real resources contain no blanks."""

THREAD: Final = "a thread"
"""The name under which threads are counted like a resource. Each task function that runs in a thread uses one. Commands
use none of these: they have threads of their own."""

WHOLE_NODE: Final = "the whole node"
"""The name under which a whole node is counted like a resource. A node has one unit, which is free while no task runs
on it. A suspect whose function cannot run in a child process takes it."""

QUEUE: Final = "queue "
PROVIDER: Final = "provider "
"""`QUEUE` and `PROVIDER` are the beginnings of the names of bounds. A node counts its bound on a queue or a provider
like a resource, too: each task takes one unit."""

KIND_DEFAULT: Final = ""
"""The text of a task without requirements of its own. The requirements that the claiming node has for its kind
apply."""


class Requirements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requirements of one task. Names are sorted, so that equal requirements have equal texts."""

    cost: dict[str, Annotated[int, msgspec.Meta(gt=0)]] = {}
    """The amounts that the task uses while it runs."""
    needs: tuple[str, ...] = ()
    """The node must have all of these labels."""
    forbids: tuple[str, ...] = ()
    """The node must have none of these labels."""
    left_to_kind: tuple[Literal["cost", "needs", "forbids"], ...] = ()
    """Which of `cost`, `needs` and `forbids` the claiming node takes from the kind, because the producer did not know
    them."""
    is_long: bool = False
    """Whether the task may run for longer than the timeout of its kind."""
    is_process: bool | None = None
    """Whether the task function runs in a child process; None means as the kind says."""
    refused_by: tuple[str, ...] = ()
    """The ids of nodes whose function does not fit the arguments: none of them claims the task again. Ready tasks are
    indexed by the text that includes these ids, so a node passes over all tasks that it has refused in one step."""
    is_suspect: bool = False
    """The process of its last attempt died: the task runs isolated, and behind other tasks of its priority."""

    @property
    def text(self) -> str:
        """The text for the task's row. Never empty, because an empty text means the requirements of the kind."""
        return msgspec.json.encode(self).decode()


NO_REQUIREMENTS: Final = Requirements()
LEFT_TO_KIND: Final = Requirements(left_to_kind=("cost", "forbids", "needs"))
"""The requirements that an empty text stands for."""
ONE_PROCESS: Final = Requirements(cost={PROCESS: UNIT})
ONE_THREAD: Final = Requirements(cost={THREAD: UNIT})
UNREADABLE_REQUIREMENTS: Final = Requirements(left_to_kind=("cost", "needs", "forbids"))
"""The requirements that replace an unreadable text: those of the kind, so that a node claims the task and ends it."""


def make_requirements(cost: Mapping[str, int], needs: frozenset[str], forbids: frozenset[str]) -> Requirements:
    """Make requirements, with sorted names and without zero amounts."""
    amounts = {name: cost[name] for name in sorted(cost) if cost[name]}
    return Requirements(cost=amounts, needs=tuple(sorted(needs)), forbids=tuple(sorted(forbids)))


def with_execution(said: Requirements, *, is_process: bool, is_threaded: bool = False) -> Requirements:
    """The requirements, changed so that they include what the task function runs in: a child process (`is_process`), or
    otherwise a thread if it is a plain function (`is_threaded`)."""
    name = PROCESS if is_process else THREAD if is_threaded else None
    cost = {other: amount for other, amount in said.cost.items() if other not in (PROCESS, THREAD)}
    changed = cost if name is None else cost | {name: UNIT}
    return said if changed == said.cost else msgspec.structs.replace(said, cost=changed)


def with_kind_defaults(
    said: Requirements, of_kind: Requirements, *, is_isolable: bool = True, is_threaded: bool = False
) -> Requirements:
    """These requirements, completed by those of the kind. Both include child processes and threads. A suspect runs in a
    child process, or alone on its node if functions of the kind cannot run in one (`is_isolable`). Functions of the
    kind that do not run in a child process run in a thread if `is_threaded`."""
    is_process = PROCESS in of_kind.cost if said.is_process is None else said.is_process
    if said.left_to_kind:
        found = {name: getattr(of_kind, name) for name in said.left_to_kind}
        said = msgspec.structs.replace(said, **found, left_to_kind=())
    if not said.is_suspect:
        return with_execution(said, is_process=is_process, is_threaded=is_threaded)
    isolated = with_execution(said, is_process=is_isolable, is_threaded=is_threaded)
    if is_isolable:
        return isolated
    return msgspec.structs.replace(isolated, cost=isolated.cost | {WHOLE_NODE: UNIT})


def is_suspect_text(text: str) -> bool:
    """Whether the text of a row has the mark of a suspect."""
    return text != KIND_DEFAULT and parse_requirements(text).is_suspect


def suspect_text(text: str, *, is_suspect: bool) -> str:
    """The text of a row, with the mark of a suspect or without it. A text that cannot be read stays as it is: no node
    runs that task."""
    said = parse_requirements(text) if text else LEFT_TO_KIND
    if said is UNREADABLE_REQUIREMENTS:
        return text
    changed = msgspec.structs.replace(said, is_suspect=is_suspect)
    return KIND_DEFAULT if changed == LEFT_TO_KIND else changed.text


def queue_bound(queue: str) -> str:
    """The name under which a node counts the tasks of a bounded queue."""
    return f"{QUEUE}{queue}"


def provider_bound(provider: str | None) -> str:
    """The name under which a node counts the tasks of a bounded provider."""
    return f"{PROVIDER}{provider}"


def is_name_of_bound(name: str) -> bool:
    """Whether this is the name of a bound."""
    return name.startswith((QUEUE, PROVIDER))


def is_unit(name: str) -> bool:
    """Whether each task takes one unit of the resource or none: child processes, threads, and bounds."""
    return name in (PROCESS, THREAD) or is_name_of_bound(name)


def bounds_of(totals: Mapping[str, int], provider: str | None, *, is_command: bool) -> tuple[str, ...]:
    """The bounds of a node that may apply to tasks of a kind: those of all bounded queues, and that of its provider.
    None applies to commands, so that a full node obeys them."""
    if is_command:
        return ()
    return tuple(name for name in totals if name.startswith(QUEUE) or name == provider_bound(provider))


def bound_cost(bounds: Iterable[str], queue: str | None) -> dict[str, int]:
    """The cost of a task of this queue in bounds: one unit of each bound that applies to it."""
    return {name: UNIT for name in bounds if name == queue_bound(queue or "") or name.startswith(PROVIDER)}


@lru_cache(maxsize=4096)
def parse_requirements(text: str) -> Requirements:
    """Parse the text of a row. Returns `UNREADABLE_REQUIREMENTS` if this release cannot read it. The result is cached
    and must not be changed."""
    try:
        return msgspec.json.decode(text, type=Requirements)
    except READ_ERRORS:
        return UNREADABLE_REQUIREMENTS


def with_refusal(text: str, node_id: str) -> Requirements:
    """The requirements of a task, with this node added to the nodes that have refused it."""
    said = parse_requirements(text) if text else LEFT_TO_KIND
    return msgspec.structs.replace(said, refused_by=tuple(sorted({*said.refused_by, node_id})))


def without_refusals(text: str) -> str:
    """The text of the requirements, without the nodes that have refused the task."""
    if not text or not parse_requirements(text).refused_by:
        return text
    said = msgspec.structs.replace(parse_requirements(text), refused_by=())
    return KIND_DEFAULT if said == LEFT_TO_KIND else said.text


def is_suitable(
    requirements: Requirements, labels: frozenset[str], totals: Mapping[str, int], node_id: str | None = None
) -> bool:
    """Whether a node with this id, these labels and totals can ever run a task with these requirements."""
    return not (
        node_id in requirements.refused_by
        or missing_labels(requirements, labels)
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
