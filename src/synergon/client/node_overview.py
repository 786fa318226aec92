"""The view of a node for operators: its capacity and use in plain units, from its row and its published status."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from synergon.model.node_status import NodeStatus
from synergon.model.nodes import NodeRecord
from synergon.model.process_identity import is_gone
from synergon.model.record import Record
from synergon.model.requirements import PROCESS, PROVIDER, QUEUE, SLOT, THREAD, UNIT, WHOLE_NODE
from synergon.options.store_urls import shown

if TYPE_CHECKING:
    from synergon.stores.base import Store

PLAIN_NAMES: Final = {PROCESS: "child_processes", THREAD: "threads", SLOT: "slots"}


class NodeOverview(Record, frozen=True, kw_only=True):
    """A node, as operators see it. The field names are those of `nodes --json`."""

    id: str
    name: str
    host: str
    pid: int
    is_alive: bool
    """Whether the lease is live and, if the node is on this host, its process exists."""
    runs_tasks: bool
    """Whether the engine runs tasks. False for one that only waits for results."""
    kinds: tuple[str, ...]
    queues: tuple[str, ...] | None
    """The queues that the node serves. None means all queues."""
    concurrency: int
    running: int
    """The number of tasks that run on the node, according to the store. Those of a dead node are about to be reaped."""
    free: int
    """The number of free slots. 0 for a dead or cordoned node."""
    threads: int | None
    """The number of threads for tasks. None until the node has published a status."""
    threads_in_use: int | None
    """The number of threads that were in use when the node published its status."""
    is_cordoned: bool
    """Whether the node starts no new tasks."""
    cordoned_at: datetime | None
    departure: str | None
    """`drain` or `restart`, if the node stops when its running tasks have ended. None otherwise."""
    address: str | None
    """The address for peers. None if peers cannot reach the node."""
    version: str
    registered_at: datetime
    lease_remaining: float
    """The seconds until the lease ends, by the store's clock. Negative after it has ended."""
    state: NodeStatus
    """The status that the node published last."""
    state_age: float
    """The age of that status in seconds, by the store's clock."""

    def document(self) -> dict[str, Any]:
        """The node as JSON values, with units in the names."""
        document = self.as_dict()
        for name in ("state", "state_age", "lease_remaining"):
            del document[name]
        return {
            **document,
            "lease_remaining_seconds": self.lease_remaining,
            "status_age_seconds": self.state_age,
            "labels": list(self.state.labels),
            "running_by_kind": self.state.running,
            "hints": asdict(self.state.hints),
            "resources": plain_amounts(self.state.totals),
            "resources_free": plain_amounts(self.state.free),
        }


async def read_overviews(store: Store, *, with_waiting: bool = False) -> list[NodeOverview]:
    """All nodes. `with_waiting`: also engines that run no tasks and wait for results."""
    found = await store.nodes()
    running = await store.running_by_node()
    return [overview_of(node, running.get(node.id, 0)) for node in found if with_waiting or node.concurrency]


def overview_of(node: NodeRecord, running: int) -> NodeOverview:
    """Make the overview of a node on which `running` tasks run."""
    alive = is_alive(node)
    return NodeOverview(
        id=node.id,
        name=node.name,
        host=node.process.host,
        pid=node.process.pid,
        is_alive=alive,
        runs_tasks=bool(node.concurrency),
        kinds=node.kinds,
        queues=node.queues,
        concurrency=node.concurrency,
        running=running,
        free=max(node.concurrency - running, 0) if alive and not node.is_cordoned else 0,
        threads=node.state.totals[THREAD] // UNIT if THREAD in node.state.totals else None,
        threads_in_use=threads_in_use(node.state),
        is_cordoned=node.is_cordoned,
        cordoned_at=node.cordoned_at,
        departure=node.state.departure if node.is_cordoned else None,
        address=shown(node.address) if node.address is not None else None,
        version=node.version,
        registered_at=node.registered_at,
        lease_remaining=node.lease_remaining,
        state=node.state,
        state_age=node.published_ago,
    )


def plain_amounts(amounts: Mapping[str, int]) -> dict[str, Any]:
    """The amounts of a node's resources in the units that users give: `cpu`, `ram_bytes`, `threads`,
    `child_processes`, and `queues` and `providers` with their bounds."""
    found: dict[str, Any] = {}
    for name, amount in amounts.items():
        number = amount / UNIT if amount % UNIT else amount // UNIT
        if name == "ram":
            found["ram_bytes"] = amount
        elif name.startswith((QUEUE, PROVIDER)):
            group, _, bound = name.partition(" ")
            found.setdefault(f"{group}s", {})[bound] = number
        elif name != WHOLE_NODE:
            found[PLAIN_NAMES.get(name, name)] = number
    return found


def threads_in_use(state: NodeStatus) -> int | None:
    """How many threads of a node are in use, by its status. None if the status does not say so."""
    total = state.totals.get(THREAD)
    return None if total is None else (total - state.free.get(THREAD, 0)) // UNIT


def is_alive(node: NodeRecord) -> bool:
    """Whether the lease of the node is live and, if the node is on this host, its process exists."""
    return node.lease_remaining > 0 and not is_gone(node.process)
