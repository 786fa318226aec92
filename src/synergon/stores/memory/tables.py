"""The rows of one memory store with everything that finds them, and the primitive moves that keep both in step."""

from __future__ import annotations

import secrets
import threading
from typing import Final

import msgspec

from synergon.lifecycle import FINAL, WAITING_STATES, Reason, State
from synergon.records import NewNode, NewTask
from synergon.stores.memory.agenda import Agenda
from synergon.stores.memory.lanes import Lane
from synergon.stores.memory.row import Row, Tally

READY: Final = State.READY
RUNNING: Final = State.RUNNING


class Node(msgspec.Struct):
    """A registered node and its lease."""

    registered: NewNode
    registered_at: int
    leased_until: int


class Tables:
    """All data behind one `memory://` URL.

    A row is the truth; what finds it (lanes, agendas, keys, tallies) is derived from it and changed only by the
    methods here, so that no caller can forget one of them. Whoever uses the tables holds `lock`.
    """

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.open_stores = 0
        self.secret: Final = secrets.token_bytes(32)
        self.latest_moment = 0
        """The clock of the tables: the largest moment that any store has read."""
        self.last_id = 0
        self.rows: Final[dict[int, Row]] = {}
        """Every task, in the order of ids."""
        self.holders: Final[dict[tuple[str, str], Row]] = {}
        """The live task that holds each (kind, key)."""
        self.running: Final[dict[str, dict[int, Row]]] = {}
        """The running tasks of each node, registered or not."""
        self.ended: Final[dict[State, dict[int, Row]]] = {state: {} for state in FINAL}
        """The history: ended tasks of each final state, in the order in which they ended."""
        self.tallies: Final[dict[tuple[str, str], Tally]] = {}
        """How many tasks each (queue, kind) has in each state."""
        self.lanes: Final[dict[str, dict[str, Lane]]] = {}
        """By kind, then by queue."""
        self.due: Final = Agenda(lambda row: row.run_at if row.state is State.SCHEDULED else None)
        self.expiry: Final = Agenda(lambda row: row.expires_at if row.state in WAITING_STATES else None)
        self.queues: Final[dict[str, int | None]] = {}
        """Every queue that was ever named, and since when it is paused."""
        self.nodes: Final[dict[str, Node]] = {}

    # ------------------------------------------------------------ tasks come and go

    def add(self, task: NewTask, run_at: int, now: int) -> Row:
        """A new task, `ready` or `scheduled` as `run_at` says."""
        self.last_id += 1
        row = Row(
            id=self.last_id,
            task=task,
            tally=self._tally(task.queue, task.kind),
            state=State.WAITING,
            priority=task.priority,
            run_at=run_at,
            enqueued_at=now,
            expires_at=None if task.expires_in is None else now + task.expires_in,
        )
        self.rows[row.id] = row
        if task.key is not None:
            self.holders[task.kind, task.key] = row
        self._enter(row, State.SCHEDULED if run_at > now else State.READY)
        return row

    def replace(self, row: Row, task: NewTask, run_at: int, now: int) -> None:
        """Another task under the id and the key of a live one that is not running."""
        self._leave(row)
        row.task = task
        row.tally = self._tally(task.queue, task.kind)
        row.priority = task.priority
        row.enqueued_at = now
        row.expires_at = None if task.expires_in is None else now + task.expires_in
        row.attempts = row.crashes = 0
        row.errors = ()
        row.progress = None
        row.run_at = run_at
        self._enter(row, State.SCHEDULED if run_at > now else State.READY)

    def remove(self, row: Row) -> None:
        """Forget a task that is not running."""
        self._leave(row)
        if row.state not in FINAL:
            self._free_key(row)
        del self.rows[row.id]
        # Entries that were left behind in a lane or an agenda must not take it for a live task.
        row.state = State.CANCELLED

    # ------------------------------------------------------------ moves

    def start(self, row: Row, node_id: str, now: int) -> None:
        """`ready` → `running` for a task just taken from its lane."""
        tally = row.tally
        tally[READY] -= 1
        tally[RUNNING] += 1
        row.state = RUNNING
        row.claim_no += 1
        row.attempts += 1
        row.node_id = node_id
        row.started_at = now
        self.running.setdefault(node_id, {})[row.id] = row
        if row.expires_at is not None:
            self.expiry.forget_one()

    def requeue(self, row: Row, run_at: int, now: int) -> None:
        """A live task → `ready`, or `scheduled` if it is due later."""
        self._leave(row)
        row.run_at = run_at
        row.node_id = None
        row.overdue = False
        self._enter(row, State.SCHEDULED if run_at > now else State.READY)

    def reprioritize(self, row: Row, priority: int) -> None:
        """Another place in the order for a live task that is not running."""
        self._leave(row)
        row.priority = priority
        self._enter(row, row.state)

    def end(self, row: Row, state: State, reason: Reason | None, now: int) -> None:
        """A live task → its final state and the history; its key is free from here on."""
        self._leave(row)
        self._free_key(row)
        row.state = state
        row.reason = reason
        row.finished_at = now
        row.tally[state] += 1
        self.ended[state][row.id] = row

    def revive(self, row: Row, now: int) -> None:
        """An ended task → `ready`, as if it had never run, but for its claim number and its errors."""
        self._leave(row)
        if row.task.key is not None:
            self.holders[row.task.kind, row.task.key] = row
        row.attempts = row.crashes = 0
        row.run_at = now
        row.node_id = row.started_at = row.finished_at = row.expires_at = None
        row.reason = row.result = row.progress = None
        row.cancel_requested = row.overdue = False
        self._enter(row, State.READY)

    # ------------------------------------------------------------ questions

    def holder(self, task: NewTask) -> Row | None:
        """The live task that holds this task's key."""
        return None if task.key is None else self.holders.get((task.kind, task.key))

    def is_leased(self, node_id: str, now: int) -> bool:
        """Whether the node may act."""
        node = self.nodes.get(node_id)
        return node is not None and now <= node.leased_until

    # ------------------------------------------------------------ what finds a row

    def _enter(self, row: Row, state: State) -> None:
        """Into one of the states of a live task that does not run."""
        row.state = state
        row.tally[state] += 1
        if state is READY:
            self._lane(row.task.kind, row.task.queue).add(row)
        elif state is State.SCHEDULED:
            self.due.add(row, row.run_at)
        if row.expires_at is not None:
            self.expiry.add(row, row.expires_at)

    def _leave(self, row: Row) -> None:
        """Out of whatever state it is in."""
        state = row.state
        row.tally[state] -= 1
        if state is RUNNING:
            assert row.node_id is not None
            del self.running[row.node_id][row.id]
            return
        if state in FINAL:
            del self.ended[state][row.id]
            return
        if state is READY:
            self._lane(row.task.kind, row.task.queue).forget_one()
        elif state is State.SCHEDULED:
            self.due.forget_one()
        if row.expires_at is not None:
            self.expiry.forget_one()

    def _free_key(self, row: Row) -> None:
        if row.task.key is not None:
            del self.holders[row.task.kind, row.task.key]

    def _lane(self, kind: str, queue: str) -> Lane:
        lanes = self.lanes.setdefault(kind, {})
        lane = lanes.get(queue)
        if lane is None:
            lane = lanes[queue] = Lane(queue, self._tally(queue, kind))
        return lane

    def _tally(self, queue: str, kind: str) -> Tally:
        tally = self.tallies.get((queue, kind))
        if tally is None:
            tally = self.tallies[queue, kind] = dict.fromkeys(State, 0)
            self.queues.setdefault(queue, None)
        return tally
