"""How many tasks of each kind may start here now."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from synergon.node.fairness import Fairness
from synergon.node.ledger import Ledger
from synergon.records import ClaimRequest, Room
from synergon.task import AnyTask


class Admission:
    """Turns free capacity into a claim request. It asks for nothing that could not start at once."""

    def __init__(self, kinds: Mapping[str, AnyTask], ledger: Ledger, queues: frozenset[str] | None) -> None:
        self._kinds = kinds
        self._ledger = ledger
        self._queues = queues
        self._rooms = {kind: _room(task_type) for kind, task_type in kinds.items()}
        self._fairness = Fairness(kinds, ledger, self.room)

    def serves(self, kind: str, queue: str | None) -> bool:
        """Whether tasks of this lane run here; a queue that nobody knows might be another one."""
        return kind in self._kinds and (self._queues is None or queue in self._queues)

    def request(self, node_id: str, wanted: Collection[str]) -> ClaimRequest | None:
        """What to claim of the wanted kinds; None: there is no room for any."""
        free = max(self._ledger.free, 0)
        shares = self._fairness.shares(wanted)
        rooms = [room for kind in wanted if (room := self._counted(kind, shares.get(kind))).count > 0]
        in_processes = [room for room in rooms if self._kinds[room.kind].policy.runs_in == "process"]
        if len(in_processes) > 1:  # they share the places of child processes, so they are asked for together and alone
            rooms, free = in_processes, min(free, self._ledger.processes_free)
        if not rooms:
            return None
        return ClaimRequest(node_id=node_id, rooms=tuple(rooms), limit=free, queues=self._queues)

    def _counted(self, kind: str, share: int | None) -> Room:
        room = self.room(kind)
        return msgspec.structs.replace(self._rooms[kind], count=room if share is None else min(room, share))

    def has_room(self, kind: str) -> bool:
        """Whether a task of this kind, of any kind there is, could start now."""
        return kind in self._kinds and self.room(kind) > 0

    def room(self, kind: str) -> int:
        """How many tasks of this kind could start now."""
        policy = self._kinds[kind].policy
        room = self._ledger.commands_free if self._kinds[kind].is_command else self._ledger.free
        if policy.max_running is not None:
            room = min(room, policy.max_running - self._ledger.by_kind[kind])
        if policy.runs_in == "process":
            room = min(room, self._ledger.processes_free)
        return room


def _room(task_type: AnyTask) -> Room:
    """What a task of this kind needs besides a slot of the node."""
    return Room(
        kind=task_type.kind,
        count=0,
        limits=task_type.limits,
        provider=task_type.provider.name if task_type.provider is not None else None,
        is_rated=task_type.policy.rate is not None,
        is_command=task_type.is_command,
    )
