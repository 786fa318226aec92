"""What follows from the moves of a transaction: groups end, what waited for them is released, lines close up.

Whoever moves a task writes down which line and group it touched (`Transaction.touch`) and draws the consequences once,
at the end of its work: a batch that touches a line many times puts it in order once.
"""

from __future__ import annotations

from collections.abc import Iterable

from synergon.model.lifecycle import State
from synergon.stores.sqlite.key_queues import balance
from synergon.stores.sqlite.transaction import Moves, Transaction


def draw(transaction: Transaction) -> Moves:
    """End the groups that have nothing left, put the lines in order; what was moved by that."""
    moves: Moves = {}
    if transaction.groups:
        touched, transaction.groups = transaction.groups, set()
        moves.update(_end_groups(transaction, touched))
    if transaction.key_queues:
        key_queues, transaction.key_queues = transaction.key_queues, set()
        moves.update(balance(transaction, key_queues))
    return moves


def _end_groups(transaction: Transaction, group_ids: Iterable[int]) -> Moves:
    """Each ends once: a task that an operator brings back later does not begin it anew."""
    moves: Moves = {}
    for group_id in group_ids:
        if transaction.run("end_group", now=transaction.now, id=group_id) == 1:
            moves.update(_release_after(transaction, group_id))
    return moves


def _release_after(transaction: Transaction, group_id: int) -> Moves:
    """Let go what waited for the group: it is due when it says, and goes into its line if it has one."""
    released = transaction.rows("release_after", transaction.now, group_id)
    for _, kind, limit_key, _ in released:
        transaction.touch(kind, limit_key)
        transaction.released.append(kind)
    return {task_id: (kind, State(state)) for task_id, kind, _, state in released}
