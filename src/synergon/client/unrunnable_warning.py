"""Warns, when a task is enqueued, that no live node can ever run it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from synergon.client.cooperative import made_in_chunks
from synergon.errors import StoreError
from synergon.explain.requirement_text import requirements_in_text, why_never
from synergon.model.node_status import NodeStatus, could_run, read_status, requirements_on
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import Insertion, NewTask

if TYPE_CHECKING:
    from synergon.client.ports import Ports
    from synergon.stores.base import Store

MAX_REQUIREMENTS: Final = 10_000
"""How many different requirements are remembered, so that each is logged only once."""

SHOWN_NODES: Final = 5


class UnrunnableWarning:
    """Compares the requirements of new tasks with the live nodes, and logs a warning if no node can ever meet them. The
    warning is logged once, and again only if a node has met them in between.

    It is only a warning: a node that can run the task may start at any time. Tasks of `known` kinds without
    requirements cost nothing; others cost a read of the node table, at most once per heartbeat. For a kind that is not
    known here, the requirements are those that its nodes publish.
    """

    def __init__(self, ports: Ports, logger: logging.Logger, refresh_seconds: float, known: Container[str]) -> None:
        self._ports = ports
        self._logger = logger
        self._refresh_seconds = refresh_seconds
        self._known = known
        self._judged: set[tuple[str, str]] = set()
        """The pairs of kind and requirements that were compared since the node table was last read."""
        self._hopeless: set[tuple[str, str]] = set()
        """The pairs of kind and requirements for which a warning was logged."""
        self._nodes: list[NodeRecord] = []
        self._read_at: float | None = None

    async def consider(
        self, store: Store, tasks: Sequence[NewTask], inserted: Sequence[Insertion] | None = None
    ) -> None:
        """Log a warning for tasks that no live node can run. Never raises. `inserted` has the insertions of the tasks:
        a task that was not stored, because a live task holds its key, does not count."""
        wanted = {(task.kind, task.requirements) for task in _stored(tasks, inserted) if self.is_of_interest(task)}
        if not wanted:
            return
        if self._is_stale() or len(self._judged) > MAX_REQUIREMENTS:
            self._judged.clear()
        new = wanted - self._judged
        if not new:
            return
        self._judged |= new
        try:
            nodes = await self._live_nodes(store)
        except StoreError:
            return
        runners = {kind: [node for node in nodes if kind in node.kinds] for kind, _ in new}
        states = {kind: _states(found) for kind, found in runners.items()}
        await made_in_chunks(lambda each: self._outcome_of(*each, states[each[0]]), sorted(new))

    def for_children(self, store: Store) -> ChildrenToCheck:
        """Make the duty of the node that checks children of tasks."""
        return ChildrenToCheck(self, store)

    def is_of_interest(self, task: NewTask) -> bool:
        """Whether the task must be compared: it has requirements, or its kind is not known here."""
        return task.requirements != KIND_DEFAULT or task.kind not in self._known

    async def _live_nodes(self, store: Store) -> list[NodeRecord]:
        if self._is_stale():
            now = self._ports.clock.monotonic()
            self._nodes = [node for node in await store.nodes() if node.lease_remaining > 0]
            self._read_at = now
        return self._nodes

    def _is_stale(self) -> bool:
        return self._read_at is None or self._ports.clock.monotonic() - self._read_at > self._refresh_seconds

    def _outcome_of(self, kind: str, text: str, states: Sequence[tuple[str, NodeStatus]]) -> None:
        if not states:  # a node may be about to start
            self._judged.discard((kind, text))
            return
        if any(could_run(state, kind, text) for _, state in states):
            self._hopeless.discard((kind, text))
            return
        if (kind, text) in self._hopeless:
            return
        if len(self._hopeless) > MAX_REQUIREMENTS:
            self._hopeless.clear()
        self._hopeless.add((kind, text))
        self._warn(kind, text, states)

    def _warn(self, kind: str, text: str, states: Sequence[tuple[str, NodeStatus]]) -> None:
        reasons: list[str] = []
        for name, state in states:
            requirements = requirements_on(state, kind, text)
            reasons.append(f"{name} {' and '.join(why_never(requirements, frozenset(state.labels), state.totals))}")
        if len(reasons) > SHOWN_NODES:
            reasons[SHOWN_NODES:] = [f"and so on for {len(reasons) - SHOWN_NODES} more"]
        self._logger.warning(
            "no live node could ever run this task of kind %r (%s): %s; it waits for one that can",
            kind,
            requirements_in_text(requirements_on(states[0][1], kind, text)),
            ", ".join(reasons),
            extra={"kind": kind},
        )


def _stored(tasks: Sequence[NewTask], inserted: Sequence[Insertion] | None) -> Iterable[NewTask]:
    """The tasks that were stored: as new ones, or into the row of a task that they replaced."""
    if inserted is None:
        return tasks
    pairs = zip(tasks, inserted, strict=True)
    return (task for task, found in pairs if found.created or task.on_conflict == "replace")


def _states(nodes: Iterable[NodeRecord]) -> list[tuple[str, NodeStatus]]:
    """The name and published status of each node, sorted by name."""
    return [(node.name, read_status(bytes(node.published))) for node in sorted(nodes, key=lambda node: node.name)]


class ChildrenToCheck:
    """Checks the children of tasks after they are stored. Runs as a duty of the node, so that no task waits for it."""

    def __init__(self, warning: UnrunnableWarning, store: Store) -> None:
        self._warning = warning
        self._store = store
        self._stored: list[NewTask] = []
        self._event = asyncio.Event()

    def note(self, tasks: Iterable[NewTask]) -> None:
        """Queue these stored tasks for the next check."""
        self._stored += tasks
        self._event.set()

    async def step(self) -> None:
        """Wait for stored children, and check them."""
        await self._event.wait()
        self._event.clear()
        stored, self._stored = self._stored, []
        await self._warning.consider(self._store, stored)
