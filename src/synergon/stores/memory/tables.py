"""The tables of a memory store: rows of tasks, the indexes over them, and the changes that keep both consistent."""

from __future__ import annotations

import secrets
import threading
from typing import Final

from msgspec.structs import replace

from synergon.model.lifecycle import FINAL, WAITING_STATES, Reason, State
from synergon.model.operator_actions import AuditRecord
from synergon.model.tasks import NewTask, StoredRetention
from synergon.stores.memory.dependencies import Dependencies
from synergon.stores.memory.entries import Group, Limit, Node, Provider
from synergon.stores.memory.key_queues import KeyQueue, key_queue_name
from synergon.stores.memory.ready import ReadyTasks
from synergon.stores.memory.row import Row, Tally
from synergon.stores.memory.task_index import TaskIndex
from synergon.stores.memory.tenants import Tenants
from synergon.stores.rows import KeyHold, KeyQueueName, LiveCount, NodeName, ScheduleRow, StatisticsRow
from synergon.stores.rules.shared_capacity import Grant

READY: Final = State.READY
RUNNING: Final = State.RUNNING


class Tables:
    """All data of one `memory://` URL.

    The rows are authoritative. The indexes (ready groups, task indexes, unique keys, counts) are derived from the rows.
    Only the methods of this class change rows and indexes, so that they cannot diverge. Callers hold `lock`.
    """

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.open_stores = 0
        self.identity: Final = secrets.token_bytes(32)
        self.secret: bytes = self.identity
        self.latest_moment = 0
        """The latest moment that any store has read. The clock of the tables never returns an earlier one."""
        self.last_id: int = 0
        self.rows: Final[dict[int, Row]] = {}
        """Every task, in the order of ids."""
        self.holders: Final[dict[tuple[str, str], Row]] = {}
        """For each kind and unique key, the live task that holds the key."""
        self.key_holds: Final[dict[tuple[str, str], KeyHold]] = {}
        """The holds of unique keys: keys that stay taken until a moment, also after the end of their task."""
        self.names_of_holds: Final[dict[int, set[tuple[str, str]]]] = {}
        """For each task with holds, their names in `key_holds`."""
        self.running: Final[dict[str, dict[int, Row]]] = {}
        """The running tasks of each node, registered or not."""
        self.ended: Final[dict[State, dict[int, Row]]] = {state: {} for state in FINAL}
        """The history: for each final state, the tasks by `ended_no`, ascending."""
        self.by_keep_for: Final[dict[int, dict[int, Row]]] = {}
        """For each value of `keep_for`, the final tasks that have it, by `ended_no`, ascending."""
        self.last_end: int = 0
        self.pruned: Final[dict[tuple[State, str], int]] = {}
        """The highest `ended_no` that was pruned, by state and kind."""
        self.tallies: Final[dict[tuple[str, str], Tally]] = {}
        """For each queue and kind, how many tasks are in each state."""
        self.live_count: LiveCount | None = None
        self.ready: Final = ReadyTasks()
        self.tenants: Final = Tenants()
        self.due: Final = TaskIndex(lambda row: row.run_at if row.state is State.SCHEDULED else None)
        self.expiry: Final = TaskIndex(lambda row: row.expires_at if row.state in WAITING_STATES else None)
        self.queues: Final[dict[str, int | None]] = {}
        """When each queue was paused; None for a queue that is not paused."""
        self.nodes: Final[dict[str, Node]] = {}
        self.past_nodes: Final[dict[str, tuple[NodeName, int]]] = {}
        """For each deleted node, its name and when it was deleted, oldest first."""
        self.limits: Final[dict[str, Limit]] = {}
        self.providers: Final[dict[str, Provider]] = {}
        self.held: Final[dict[int, Row]] = {}
        """The running tasks that hold permits of limits or servers."""
        self.commands: Final[dict[int, Row]] = {}
        """The live commands."""
        self.key_queues: Final[dict[KeyQueueName, KeyQueue]] = {}
        """The key queues that have a live task."""
        self.next_starts: Final[dict[KeyQueueName, int]] = {}
        """For each key queue, the moment from which its next start is within its rate (`rules.rates`)."""
        self.dependencies: Final = Dependencies()
        self.dependent: Final[dict[int, Row]] = {}
        """The tasks that wait for dependencies."""
        self.unsettled: Final[dict[int, Row]] = {}
        """Tasks that `defer_dependent` has moved to `scheduled`: the next `wake` settles their dependencies. May
        contain tasks that are settled already."""
        self.batch_alarms: Final[dict[KeyQueueName, int]] = {}
        """For each key queue whose next batch is not complete, the moment at which it is due (`rules.batches`)."""
        self.last_group_id = 0
        self.groups: Final[dict[int, Group]] = {}
        self.schedules: Final[dict[str, ScheduleRow]] = {}
        self.audit: Final[dict[int, AuditRecord]] = {}
        """Operator actions by id, oldest first."""
        self.last_action_id = 0
        self.retention: StoredRetention | None = None
        self.statistics: Final[dict[tuple[int, int, str, str, str], StatisticsRow]] = {}
        """The rows of statistics, by span, moment, kind, queue and source."""

    # ------------------------------------------------------------ insert and delete

    def add(self, task: NewTask, run_at: int, now: int) -> Row:
        """Insert a task. Its dependencies, its due time and its limit key decide its state."""
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
            limit_key=task.limit_key,
            is_dependent=task.is_dependent,
            has_dependents=task.has_dependents,
            fair_tag=task.fair_tag,
        )
        self.rows[row.id] = row
        self._add_live(row)
        if task.is_dependent:
            self.dependent[row.id] = row
        if task.group_id is not None:
            self._join_group(row, task.group_id)
        self._arrive(row, now)
        return row

    def replace(self, row: Row, task: NewTask, run_at: int, now: int) -> None:
        """Write a new task into the row of a live task that is not running. The row retains its id, key and group."""
        self.set_fair_tag(row, 0)
        self._leave(row)
        self._set_dependent(row, is_dependent=task.is_dependent)
        row.limit_key = task.limit_key
        row.task = task if task.group_id is row.task.group_id else replace(task, group_id=row.task.group_id)
        row.tally = self._tally(task.queue, task.kind)
        self._add_live(row)
        row.priority = task.priority
        row.enqueued_at = now
        row.expires_at = None if task.expires_in is None else now + task.expires_in
        row.attempts = row.crashes = row.owner_deaths = row.server_failures = 0
        row.errors = row.ended_attempts = ()
        row.progress = None
        row.protected_until = 0
        row.release_reservation()
        row.run_at = run_at
        self._arrive(row, now)

    def remove(self, row: Row) -> None:
        """Delete a task, live or final, that is not running."""
        self._leave(row)
        was_live = row.state not in FINAL
        # An outdated entry in a ready group or a task index must not find a live task here.
        row.state = State.CANCELLED
        if was_live:
            self._remove_live(row)
        del self.rows[row.id]
        group = self.groups.get(row.task.group_id or 0)
        if group is not None:
            group.members.pop(row.id, None)
        self.dependencies.forget(row.id)

    # ------------------------------------------------------------ changes of state

    def start(self, row: Row, node_id: str, now: int) -> None:
        """Move a task to `running`: from `ready`, or from `waiting` if it is claimed for a batch. Increments its claim
        number and its attempts."""
        state = row.state
        if state is READY:
            self.ready.forget(row)
        if row.fair_tag:
            self.tenants.leave_ready(row)
            self.tenants.join_started(row)
        key_queue = None if row.limit_key is None else self.key_queues[row.task.kind, row.limit_key]
        if key_queue is not None:
            key_queue.leave(row)
        tally = row.tally
        tally[state] -= 1
        tally[RUNNING] += 1
        row.state = RUNNING
        row.claim_no += 1
        row.attempts += 1
        row.node_id = node_id
        row.started_at = now
        if row.reserved_by is not None:
            row.release_reservation()
        self.running.setdefault(node_id, {})[row.id] = row
        if row.expires_at is not None:
            self.expiry.forget_one()
        if key_queue is not None:
            key_queue.join(row)

    def take_permits(self, row: Row, grant: Grant) -> None:
        """Store the permits that a task holds while it runs."""
        if grant.limits or grant.provider is not None:
            row.holds, row.provider, row.slot = grant.limits, grant.provider, grant.slot
            row.server = grant.server or row.server
            self.held[row.id] = row

    def requeue(self, row: Row, run_at: int, now: int) -> None:
        """Move a live task to `scheduled` (due later), `waiting` (with a limit key) or `ready`."""
        self._leave(row)
        row.run_at = run_at
        row.node_id = None
        row.overdue = False
        row.extended_by = None
        self._arrive(row, now)

    def assign_key(self, row: Row, limit_key: str | None, now: int) -> None:
        """Move a running task to the key queue `limit_key`, as `scheduled` (due later) or `waiting`. If `limit_key` is
        None, the task leaves its key queue, and becomes `scheduled` or `ready`."""
        self._leave(row)
        row.limit_key = limit_key
        row.node_id = None
        row.overdue = False
        row.extended_by = None
        self._arrive(row, now)

    def shift(self, row: Row, state: State) -> None:
        """Move a task between `waiting` and `ready`, or from `scheduled` to `waiting`."""
        self._leave(row)
        self._enter(row, state)
        if state is not READY:
            row.release_reservation()

    def postpone(self, row: Row, run_at: int) -> None:
        """Move a task from `waiting` to `scheduled`, due at `run_at`."""
        self._leave(row)
        row.run_at = run_at
        self._enter(row, State.SCHEDULED)

    def release(self, row: Row, now: int) -> None:
        """Move a task whose dependencies have ended to `scheduled` (due later), `waiting` (with a limit key) or
        `ready`."""
        self._leave(row)
        self._set_dependent(row, is_dependent=False)
        self._arrive(row, now)

    def make_dependent(self, row: Row) -> None:
        """Move a live task that is not running to `waiting`, until its dependencies have ended."""
        self.set_fair_tag(row, 0)
        self._leave(row)
        self._set_dependent(row, is_dependent=True)
        self._enter(row, State.WAITING)
        row.release_reservation()

    def defer_dependent(self, row: Row) -> None:
        """Move a task that waits for dependencies to `scheduled`, so that the next `wake` settles them."""
        self._leave(row)
        self._enter(row, State.SCHEDULED)
        self.unsettled[row.id] = row

    def reprioritize(self, row: Row, priority: int) -> None:
        """Change the priority of a live task that is not running. If the new priority differs, the task loses its turn
        (`fair_tag`)."""
        if priority != row.priority:
            self.set_fair_tag(row, 0)
        self._leave(row)
        row.priority = priority
        self._enter(row, row.state)

    def set_fair_tag(self, row: Row, tag: int) -> None:
        """Change the tag of a live task that is not running. 0 means no tag."""
        if row.fair_tag == tag:
            return
        self._leave(row)
        if row.fair_tag:
            self.tenants.leave(row)
        row.fair_tag = tag
        if tag:
            self.tenants.join(row)
        self._enter(row, row.state)

    def set_requirements(self, row: Row, requirements: str) -> None:
        """Change the requirements of a live task. Only ready tasks are indexed by them."""
        is_ready = row.state is READY
        if is_ready:
            self._leave(row)
        row.task = replace(row.task, requirements=requirements)
        if is_ready:
            self._enter(row, READY)

    def end(self, row: Row, state: State, reason: Reason | None, now: int) -> None:
        """Move a live task to its final state and the history. Its unique key becomes free."""
        self._leave(row)
        row.state = state
        row.reason = reason
        row.finished_at = now
        row.release_reservation()
        row.tally[state] += 1
        self.last_end += 1
        row.ended_no = self.last_end
        self.ended[state][row.ended_no] = row
        if row.task.keep_for is not None:
            self.by_keep_for.setdefault(row.task.keep_for, {})[row.ended_no] = row
        self._remove_live(row)

    def revive(self, row: Row, now: int) -> None:
        """Move a final task back to `ready`, or to `waiting` if it has a limit key, due now. Clears its result, its
        counts of attempts and crashes, and its expiry."""
        self._leave(row)
        self._add_live(row)
        group = self.groups.get(row.task.group_id or 0)
        if group is not None:
            group.live += 1
        row.attempts = row.crashes = row.owner_deaths = row.server_failures = row.protected_until = 0
        row.run_at = now
        row.node_id = row.started_at = row.finished_at = row.expires_at = None
        row.reason = row.result = row.progress = row.extended_by = row.batch_id = None
        row.cancel_requested = row.overdue = False
        self._arrive(row, now)

    # ------------------------------------------------------------ queries

    def holder(self, task: NewTask) -> Row | None:
        """The live task that holds this task's unique key. None if no live task holds it."""
        return None if task.key is None else self.holders.get((task.kind, task.key))

    def is_leased(self, node_id: str, now: int) -> bool:
        """Whether the node has a live lease."""
        node = self.nodes.get(node_id)
        return node is not None and now <= node.leased_until

    def key_queues_of(self, kind: str) -> list[KeyQueue]:
        """The key queues of a kind that have live tasks."""
        return [key_queue for key_queue in self.key_queues.values() if key_queue.kind == kind]

    # ------------------------------------------------------------ indexes

    def _arrive(self, row: Row, now: int) -> None:
        """Move a task to `waiting`, `scheduled` or `ready`, depending on its dependencies, its due time and its limit
        key."""
        if row.is_dependent:
            self._enter(row, State.WAITING)
        elif row.run_at > now:
            self._enter(row, State.SCHEDULED)
        else:
            self._enter(row, READY if row.limit_key is None else State.WAITING)

    def _enter(self, row: Row, state: State) -> None:
        """Move a task into a live state other than `running`, and update the indexes."""
        row.state = state
        row.tally[state] += 1
        if row.fair_tag:
            self.tenants.join_ready(row) if state is READY else self.tenants.join_started(row)
        if state is READY:
            self.ready.join(row)
        elif state is State.SCHEDULED:
            self.due.add(row, row.run_at)
        if row.expires_at is not None:
            self.expiry.add(row, row.expires_at)
        if row.limit_key is not None:
            self._join_key_queue(row)

    def _leave(self, row: Row) -> None:
        """Remove a task from the indexes of its current state."""
        state = row.state
        row.tally[state] -= 1
        if row.fair_tag:
            self.tenants.leave_ready(row) if state is READY else self.tenants.leave_started(row)
        if row.limit_key is not None and state not in FINAL:
            self._leave_key_queue(row)
        if state is RUNNING:
            assert row.node_id is not None
            del self.running[row.node_id][row.id]
            if row.holds is not None:
                del self.held[row.id]
                row.holds = row.provider = row.slot = None
            return
        if state in FINAL:
            del self.ended[state][row.ended_no]
            if row.task.keep_for is not None:
                del self.by_keep_for[row.task.keep_for][row.ended_no]
            return
        if state is READY:
            self.ready.forget(row)
        elif state is State.SCHEDULED:
            self.due.forget_one()
        if row.expires_at is not None:
            self.expiry.forget_one()

    def _add_live(self, row: Row) -> None:
        if row.task.key is not None:
            self.holders[row.task.kind, row.task.key] = row
        if row.task.is_command:
            self.commands[row.id] = row
        if row.fair_tag:
            self.tenants.join(row)

    def _remove_live(self, row: Row) -> None:
        """Remove a task that ends or is deleted from the indexes of live tasks. Frees its unique key, and decrements
        the live count of its group."""
        task = row.task
        if task.key is not None:
            del self.holders[task.kind, task.key]
        if task.is_command:
            self.commands.pop(row.id, None)
        if row.fair_tag:
            self.tenants.leave(row)
            row.fair_tag = 0
        self._set_dependent(row, is_dependent=False)
        if task.group_id is not None:
            self._leave_group(task.group_id)

    def _join_key_queue(self, row: Row) -> None:
        name = key_queue_name(row)
        if name is None:
            return
        key_queue = self.key_queues.get(name)
        if key_queue is None:
            key_queue = self.key_queues[name] = KeyQueue(*name)
        key_queue.join(row)

    def _leave_key_queue(self, row: Row) -> None:
        name = key_queue_name(row)
        if name is not None:
            key_queue = self.key_queues[name]
            key_queue.leave(row)
            if not key_queue.size:
                del self.key_queues[name]

    def _join_group(self, row: Row, group_id: int) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            group.members[row.id] = row
            group.live += 1

    def _leave_group(self, group_id: int) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            group.live -= 1

    def _set_dependent(self, row: Row, *, is_dependent: bool) -> None:
        row.is_dependent = is_dependent
        if is_dependent:
            self.dependent[row.id] = row
        else:
            self.dependent.pop(row.id, None)

    def _tally(self, queue: str, kind: str) -> Tally:
        tally = self.tallies.get((queue, kind))
        if tally is None:
            tally = self.tallies[queue, kind] = dict.fromkeys(State, 0)
            self.queues.setdefault(queue, None)
        return tally
