"""Permits that kinds of this node share with other kinds, here or on other nodes: those of limits, servers and key
queues.

A freed permit wakes the kinds of this node that may take it. A limit or pool is contested if another node has tasks
that this node cannot run and that need its permits. After this node has freed such a permit, it steps back for one
round, so that the other node can take the permit. So no node starves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from synergon.model.claims import Claim
from synergon.model.node_status import KindStatus
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import is_name_of_bound
from synergon.node.claims.ledger import Ledger
from synergon.task import AnyTask

SERVERS: Final = "servers"
"""The name that stands for the permits of all servers, because one limit may cover servers of several providers."""

MOST_SKIPPED: Final = 15
"""The maximum number of times in a row that the node does not step back, after it stepped back in vain."""


class SharedPermits:
    """Knows which permits the kinds of this node need, which freed permits were not taken again, and which limits and
    pools are contested."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        queues: frozenset[str] | None = None,
        labels: frozenset[str] = frozenset(),
        ledger: Ledger | None = None,
    ) -> None:
        self._kinds = kinds
        self._queues = queues
        self._labels = labels
        self._ledger = ledger
        self._names = {kind: _names(task_type) for kind, task_type in kinds.items() if task_type.is_limited}
        """The limits and pools whose permits each kind needs."""
        self._has_bounds = ledger is not None and any(map(is_name_of_bound, ledger.totals))
        self.is_needed: Final = bool(self._names)
        """Whether any kind of this node needs permits."""
        self._takers: dict[str, set[str]] = {}
        for kind, names in self._names.items():
            for name in names:
                self._takers.setdefault(name, set()).add(kind)
        self.rated: Final = frozenset(kind for kind, task_type in kinds.items() if task_type.policy.rate is not None)
        self.batch_waits: Final = {
            kind: task_type.policy.batch.wait_seconds
            for kind, task_type in kinds.items()
            if task_type.policy.batch is not None
        }
        """For each kind with batches, how many seconds a task waits for its batch to fill."""
        self.pooled: Final = frozenset(kind for kind, task_type in kinds.items() if task_type.provider is not None)
        self._freed: Counter[str] = Counter()
        self._contested: frozenset[str] = frozenset()
        self._skips = 0
        """How many times in a row the node does not step back before it steps back again. Grows each time that no other
        node took the permit."""
        self._skips_remaining = 0

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of this node that need permits."""
        return frozenset(self._names)

    def takers(self, names: Iterable[str]) -> set[str]:
        """The kinds of this node that need permits of these limits and pools."""
        return {kind for name in names for kind in self._takers.get(name, ())}

    def takers_after(self, kinds: Iterable[str | None]) -> set[str]:
        """The kinds that may take a permit when tasks of these kinds end."""
        return self.takers(name for kind in set(kinds) for name in self._names.get(kind or "", ()))

    # ------------------------------------------------------------ freed permits

    def note_freed(self, kinds: Iterable[str | None]) -> None:
        """Note that tasks of these kinds have ended and freed their permits."""
        for kind, count in Counter(kinds).items():
            for name in self._names.get(kind or "", ()):
                self._freed[name] += count

    def leftover_limits(self, claims: Iterable[Claim]) -> list[str]:
        """The limits and pools whose freed permits these claims did not take. Other nodes may need them."""
        if not self._freed:
            return []
        freed, self._freed = self._freed, Counter()
        freed.subtract(name for claim in claims if not claim.is_member for name in self._names.get(claim.kind, ()))
        return [name for name, count in freed.items() if count > 0]

    # ------------------------------------------------------------ contested limits

    def update_contested(self, others: Iterable[NodeRecord]) -> None:
        """Determine the contested limits and pools from the published status of the other nodes."""
        names = {name for node in others if _may_claim(node) for name in self._wanted_by(node)}
        self._contested = frozenset(names & self._takers.keys())

    def _wanted_by(self, node: NodeRecord) -> Iterable[str]:
        """The limits and pools whose permits the other node needs for tasks that this node cannot run, or cannot always
        run."""
        runs_more = self._runs_more(node)
        for kind in node.kinds:
            status = node.state.kind(kind)
            if kind not in self._kinds or runs_more:
                yield from _published_names(status)
            elif status.max_running is not None or status.has_can_accept or self._has_bounds:
                # This node may be at its own limit of the kind or at a bound, or may reject its tasks, while other
                # nodes run them.
                yield from (name for name in _published_names(status) if self._takers.get(name, set()) - {kind})

    def _runs_more(self, node: NodeRecord) -> bool:
        """Whether there may be tasks of one kind that the other node can run and this one cannot."""
        state, totals = node.state, {} if self._ledger is None else self._ledger.totals
        serves_more = self._queues is not None and (node.queues is None or not self._queues.issuperset(node.queues))
        has_more = any(
            amount > totals.get(name, 0) for name, amount in state.totals.items() if not is_name_of_bound(name)
        )
        return serves_more or has_more or frozenset(state.labels) != self._labels

    def contested(self, kinds: Iterable[str]) -> frozenset[str]:
        """The kinds among these that need a permit of a contested limit or pool."""
        if not self._contested:
            return frozenset()
        return frozenset(kind for kind in kinds if not self._contested.isdisjoint(self._names.get(kind, ())))

    def names_of(self, kinds: Iterable[str]) -> list[str]:
        """The limits and pools whose permits these kinds need, sorted, for a hint."""
        return sorted({name for kind in kinds for name in self._names.get(kind, ())})

    def should_defer(self) -> bool:
        """Whether the node leaves the permit that it has just freed to other nodes for one round. Counts down the
        rounds that it skips."""
        if self._skips_remaining > 0:
            self._skips_remaining -= 1
            return False
        return True

    def note_deferral(self, *, was_unused: bool) -> None:
        """Note how a round of stepping back ended. `was_unused` says that no other node took the permit."""
        self._skips = min(self._skips * 2 + 1, MOST_SKIPPED) if was_unused else 0
        self._skips_remaining = self._skips


def _names(task_type: AnyTask) -> tuple[str, ...]:
    pool = () if task_type.provider is None else (pool_name(task_type.provider.name), SERVERS)
    key_queue = () if task_type.key_template is None else (f"key:{task_type.kind}",)
    return (*task_type.limits, *pool, *key_queue)


def _may_claim(node: NodeRecord) -> bool:
    state = node.state
    is_closed = node.is_cordoned or state.is_cordoned or state.is_stopping or state.departure is not None
    return node.lease_remaining > 0 and node.concurrency > 0 and not is_closed


def _published_names(status: KindStatus) -> Collection[str]:
    pool = () if status.provider is None else (pool_name(status.provider), SERVERS)
    return (*status.limits, *pool)


def pool_name(provider: str) -> str:
    """The name under which the permits of a provider's servers are counted."""
    return f"provider:{provider}"
