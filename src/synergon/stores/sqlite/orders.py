"""Orders: what people told the engine to do, and what came of it."""

from __future__ import annotations

from typing import Any

import msgspec

from synergon.control_records import NewOrder, OrderRecord
from synergon.records import to_datetime
from synergon.stores import ordering
from synergon.stores.ordering import CORDONING, DEAD_NODE, NO_NODE, NODE_VERBS, Senseless
from synergon.stores.sqlite import limiting, nodes, operating, pools
from synergon.stores.sqlite.transaction import Transaction


def order(transaction: Transaction, new: NewOrder) -> OrderRecord:
    """Do it and write it down."""
    now, node_id = transaction.now, None
    outcome: str | None
    try:
        outcome = _carry_out(transaction, new)
        node_id = new.subject if new.verb in NODE_VERBS else None
    except Senseless as senseless:
        outcome = senseless.outcome
    order_id = transaction.next_id()
    done_at = None if outcome is None else now
    transaction.run("add_order", order_id, new.verb, new.subject, _json(new), new.who, node_id, now, done_at, outcome)
    return _record(order_id, new.verb, new.subject, _json(new), new.who, now, done_at, outcome)


def _json(new: NewOrder) -> bytes:
    return msgspec.json.encode(new.value)


def _carry_out(transaction: Transaction, new: NewOrder) -> str | None:
    """What came of it; None: the node will say. Raises `Senseless` before anything is changed."""
    ordering.check(new)
    match new.verb:
        case "pause":
            return ordering.pause_outcome(done=operating.pause(transaction, [new.subject])[0])
        case "resume":
            return ordering.resume_outcome(done=operating.resume(transaction, [new.subject])[0])
        case "set_limit":
            value = ordering.limit_value(new)
            return ordering.limit_outcome(new.subject, value, done=limiting.set_limit(transaction, new.subject, value))
        case "set_servers":
            pool = ordering.servers(new)
            return ordering.servers_outcome(new.subject, pool, done=pools.set_servers(transaction, new.subject, pool))
        case "cancel":
            ids = [ordering.task_id(new)]
            return ordering.cancel_outcome(operating.cancel(transaction, ids, ordering.why(new))[0])
        case _:
            if transaction.row("node", new.subject) is None:
                raise Senseless(NO_NODE)
            if nodes.standing(transaction, new.subject)[0] <= 0:
                raise Senseless(DEAD_NODE)
            _close_or_open(transaction, new)
            return None


def _close_or_open(transaction: Transaction, new: NewOrder) -> None:
    """The node may claim nothing, or may again, from this commit on; it need not have heard of the order."""
    if new.verb in CORDONING:
        transaction.run("cordon", transaction.now, new.subject)
    elif new.verb == "uncordon":
        transaction.run("uncordon", new.subject)


def _record(
    order_id: int,
    verb: Any,
    subject: str,
    value: bytes,
    who: str,
    ordered_at: int,
    done_at: int | None,
    outcome: str | None,
) -> OrderRecord:
    return OrderRecord(
        id=order_id,
        verb=verb,
        subject=subject,
        value=msgspec.json.decode(value),
        who=who,
        ordered_at=to_datetime(ordered_at),
        done_at=to_datetime(done_at) if done_at is not None else None,
        outcome=outcome,
    )


def orders(transaction: Transaction, limit: int, node_id: str | None) -> list[OrderRecord]:
    """The latest, or what a node has yet to do."""
    if node_id is None:
        return [_record(*row) for row in transaction.rows("orders", limit)]
    return [_record(*row) for row in transaction.rows("open_orders", node_id, limit)]


def order_done(transaction: Transaction, order_id: int, outcome: str) -> bool:
    """Write down what the node says; False: it has been said."""
    return transaction.run("order_done", transaction.now, outcome, order_id) == 1


def prune(transaction: Transaction, before: int, limit: int) -> None:
    """Forget what was ordered earlier; the oldest come first."""
    transaction.run("prune_orders", limit, before)
