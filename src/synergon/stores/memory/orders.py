"""Orders: what people told the engine to do, and what came of it."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from synergon.control_records import NewOrder, OrderRecord
from synergon.records import from_datetime, to_datetime
from synergon.stores import ordering
from synergon.stores.memory import operations, pools
from synergon.stores.memory.tables import Tables
from synergon.stores.ordering import CORDONING, DEAD_NODE, NO_NODE, NODE_VERBS, Senseless


def order(tables: Tables, new: NewOrder, now: int) -> OrderRecord:
    """Do it and write it down."""
    outcome: str | None
    try:
        outcome = _carry_out(tables, new, now)
    except Senseless as senseless:
        outcome = senseless.outcome
    tables.last_order_id += 1
    record = tables.orders[tables.last_order_id] = _record(new, tables.last_order_id, now, outcome=outcome)
    return record


def _record(new: NewOrder, order_id: int, now: int, *, outcome: str | None) -> OrderRecord:
    return OrderRecord(
        id=order_id,
        verb=new.verb,
        subject=new.subject,
        value=new.value,
        who=new.who,
        ordered_at=to_datetime(now),
        done_at=None if outcome is None else to_datetime(now),
        outcome=outcome,
    )


def _carry_out(tables: Tables, new: NewOrder, now: int) -> str | None:
    """What came of it; None: the node will say."""
    ordering.check(new)
    match new.verb:
        case "pause":
            return ordering.pause_outcome(done=operations.pause(tables, [new.subject], now)[0])
        case "resume":
            return ordering.resume_outcome(done=operations.resume(tables, [new.subject], now)[0])
        case "set_limit":
            value = ordering.limit_value(new)
            return ordering.limit_outcome(new.subject, value, done=pools.set_limit(tables, new.subject, value, now))
        case "set_servers":
            pool = ordering.servers(new)
            return ordering.servers_outcome(new.subject, pool, done=pools.set_servers(tables, new.subject, pool, now))
        case "cancel":
            ids = [ordering.task_id(new)]
            return ordering.cancel_outcome(operations.cancel(tables, ids, ordering.why(new), now)[0])
        case _:
            _tell_node(tables, new, now)
            return None


def _tell_node(tables: Tables, new: NewOrder, now: int) -> None:
    node = tables.nodes.get(new.subject)
    if node is None:
        raise Senseless(NO_NODE)
    if not tables.is_leased(new.subject, now):
        raise Senseless(DEAD_NODE)
    if new.verb == "uncordon":
        node.cordoned_at = None
    elif new.verb in CORDONING and node.cordoned_at is None:
        node.cordoned_at = now


def orders(tables: Tables, limit: int, node_id: str | None) -> list[OrderRecord]:
    """The latest, or what a node has yet to do."""
    if node_id is None:
        return list(islice(reversed(tables.orders.values()), limit))
    undone = (record for record in tables.orders.values() if record.outcome is None and record.subject == node_id)
    return list(islice((record for record in undone if record.verb in NODE_VERBS), limit))


def order_done(tables: Tables, order_id: int, outcome: str, now: int) -> bool:
    """Write down what the node says; False: it has been said."""
    record = tables.orders.get(order_id)
    if record is None or record.outcome is not None:
        return False
    tables.orders[order_id] = replace(record, outcome=outcome, done_at=to_datetime(now))
    return True


def prune(tables: Tables, before: int, limit: int) -> None:
    """Forget what was ordered earlier; the oldest come first."""
    for record in list(islice(tables.orders.values(), limit)):
        if from_datetime(record.ordered_at) < before:
            del tables.orders[record.id]
