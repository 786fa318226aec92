"""Nodes and their leases. A lease is measured by the host's monotonic clock, which every process of one boot shares:
the wall clock may step either way without ending one, and a lease from before a reboot is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.nodes import NewNode, NodeRecord, ProcessIdentity
from synergon.model.outcomes import ErrorRecord
from synergon.model.process_identity import BOOT_ID
from synergon.model.record import to_datetime
from synergon.model.tasks import Reaped
from synergon.policies import CRASH_LIMIT
from synergon.stores.sqlite import finish
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.transaction import Moves, Transaction, as_json, steady_now

OVER: Final = -1


def register(transaction: Transaction, node: NewNode) -> None:
    """Make the node known."""
    transaction.run(
        "register",
        node.id,
        node.name,
        msgspec.json.encode(node.process),
        node.process.boot_id,
        msgspec.json.encode(node.kinds),
        msgspec.json.encode(node.queues),
        node.concurrency,
        node.version,
        node.address,
        transaction.now,
        steady_now() + node.lease,
        node.lease,
        transaction.now if node.is_cordoned else None,
        node.published,
        steady_now(),
    )


def renew(transaction: Transaction, node_id: str, lease: int, published: bytes | None, *, is_stopping: bool) -> bool:
    """Lease from now on, and what the node says of itself from now on; False: the row is gone."""
    now = steady_now()
    renewed = transaction.run(
        "renew",
        leased_until=now + lease,
        lease=lease,
        published=published,
        now=now,
        is_stopping=is_stopping,
        id=node_id,
    )
    return renewed == 1


def lease_and_cordon(transaction: Transaction, node_id: str) -> tuple[int, bool]:
    """Microseconds until the lease is over (not positive: it is, or there is none), and whether it is cordoned."""
    row = transaction.row("lease_and_cordon", node_id)
    if row is None:
        return OVER, False
    *lease, cordoned_at = row
    return _remaining(*lease), cordoned_at is not None


def _remaining(leased_until: int, lease: int, boot_id: str) -> int:
    left = leased_until - steady_now()
    # More than a whole lease is left only if the clock began anew: where a boot has no id, this is how it shows.
    return left if boot_id == BOOT_ID and left <= lease else OVER


def reap(transaction: Transaction, gone: Sequence[str], limit: int) -> list[Reaped]:
    """Take running tasks from the dead. The write lock is held, so nobody renews between the look and the move."""
    leases = transaction.rows("leases")
    alive = {row[0] for row in leases if _remaining(*row[2:]) > 0} - set(gone)
    stopping = {row[0] for row in leases if row[1]}
    orphans = transaction.rows("orphans", as_json(alive), limit)
    reaped = [_take_back(transaction, *row, stopping=stopping) for row in orphans]
    moves = draw(transaction)
    reaped = [
        msgspec.structs.replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in reaped
    ]
    if reaped:
        reaped[-1] = msgspec.structs.replace(reaped[-1], released=_others_made_ready(moves, reaped))
    for node_id in {row[0] for row in leases} - alive:
        if transaction.row("holds_tasks", node_id) is None:
            transaction.run("unregister", node_id)
    return reaped


def _others_made_ready(moves: Moves, reaped: Iterable[Reaped]) -> tuple[str, ...]:
    own = {entry.id for entry in reaped}
    return tuple(kind for task_id, (kind, state) in moves.items() if state == State.READY and task_id not in own)


def _take_back(
    transaction: Transaction,
    task_id: int,
    kind: str,
    node_id: str,
    cancel: int,
    is_command: int,
    *,
    stopping: Collection[str],
) -> Reaped:
    if node_id in stopping and not is_command:
        crashes = finish.give_attempt_back(transaction, task_id)
    else:
        message = f"node {node_id} died while it ran the task"
        error = ErrorRecord(attempt=0, type="Crash", message=message, node_id=node_id)
        crashes = finish.charge_crash(transaction, task_id, error)
    if cancel:
        state = finish.end(transaction, [task_id], State.CANCELLED, Reason.CANCELLED)
    elif is_command or crashes >= CRASH_LIMIT:
        state = finish.end(transaction, [task_id], State.FAILED, Reason.CRASHED)
    else:
        state = finish.release(transaction, task_id, None)
    return Reaped(id=task_id, kind=kind, node_id=node_id, state=state, crashes=crashes)


def nodes(transaction: Transaction) -> list[NodeRecord]:
    """All rows."""
    return [_record(*row) for row in transaction.rows("nodes")]


def _record(
    node_id: str,
    name: str,
    process: bytes,
    boot_id: str,
    kinds: bytes,
    queues: bytes,
    concurrency: int,
    version: str,
    address: str | None,
    registered_at: int,
    leased_until: int,
    lease: int,
    cordoned_at: int | None,
    is_stopping: int,
    published: bytes,
    published_at: int,
) -> NodeRecord:
    decode: Any = msgspec.json.decode
    return NodeRecord(
        id=node_id,
        name=name,
        process=decode(process, type=ProcessIdentity),
        kinds=decode(kinds, type=tuple[str, ...]),
        queues=decode(queues, type=tuple[str, ...] | None),
        concurrency=concurrency,
        version=version,
        address=address,
        registered_at=to_datetime(registered_at),
        lease_remaining=_remaining(leased_until, lease, boot_id) / 1_000_000,
        cordoned_at=to_datetime(cordoned_at) if cordoned_at is not None else None,
        is_stopping=bool(is_stopping),
        published=msgspec.Raw(published),
        published_ago=max(steady_now() - published_at, 0) / 1_000_000,
    )
