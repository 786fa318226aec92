"""Says at once, where a task is enqueued, that no live node could ever run it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from synergon.errors import StoreError
from synergon.lacking import demand_words, lacking
from synergon.node_state import could_run, demanded_of, read_state
from synergon.records import NewTask, NodeRecord
from synergon.stores.base import Store

DEMANDS_KEPT: Final = 10_000
"""So many different ones are remembered, so that each is spoken of once."""

SHOWN_NODES: Final = 5


class Outlook:
    """Looks at the node table when a demand is new, and warns once if there are nodes and none of them will do.

    A warning and nothing else: a node that can may be started at any time. It costs nothing for tasks that demand
    nothing, and one look at the table for each new demand, but not more often than nodes say something new.
    """

    def __init__(self, monotonic: Callable[[], float], logger: logging.Logger, refresh_seconds: float) -> None:
        self._monotonic = monotonic
        self._logger = logger
        self._refresh_seconds = refresh_seconds
        self._judged: set[tuple[str, str]] = set()
        self._nodes: list[NodeRecord] = []
        self._read_at: float | None = None

    async def consider(self, store: Store, tasks: Iterable[NewTask]) -> None:
        """Warn of those that nobody could run; never raises because of it."""
        new = {(task.kind, task.demand) for task in tasks if task.demand} - self._judged
        if not new:
            return
        if len(self._judged) > DEMANDS_KEPT:
            self._judged.clear()
        self._judged |= new
        try:
            nodes = await self._live_nodes(store)
        except StoreError:
            return
        for kind, demand in sorted(new):
            runners = [node for node in nodes if kind in node.kinds]
            if runners:
                self._judge(kind, demand, runners)
            else:  # somebody may be about to start
                self._judged.discard((kind, demand))

    async def _live_nodes(self, store: Store) -> list[NodeRecord]:
        now = self._monotonic()
        if self._read_at is None or now - self._read_at > self._refresh_seconds:
            self._nodes = [node for node in await store.nodes() if node.lease_left > 0]
            self._read_at = now
        return self._nodes

    def _judge(self, kind: str, text: str, nodes: list[NodeRecord]) -> None:
        states = {node.name: read_state(bytes(node.published)) for node in nodes}
        if any(could_run(state, kind, text) for state in states.values()):
            return
        reasons: list[str] = []
        for name, state in sorted(states.items()):
            demand = demanded_of(state, kind, text)
            reasons.append(f"{name} {' and '.join(lacking(demand, frozenset(state.labels), state.totals))}")
        if len(reasons) > SHOWN_NODES:
            reasons[SHOWN_NODES:] = [f"and so on for {len(reasons) - SHOWN_NODES} more"]
        self._logger.warning(
            "no live node could ever run this task of kind %r (%s): %s; it waits for one that can",
            kind,
            demand_words(demanded_of(next(iter(states.values())), kind, text)),
            ", ".join(reasons),
            extra={"kind": kind},
        )
