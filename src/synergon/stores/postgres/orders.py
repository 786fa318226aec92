"""Orders: what people told the engine to do, and what came of it."""

from __future__ import annotations

from typing import Any

import msgspec

from synergon.control_records import NewOrder, OrderRecord
from synergon.stores import ordering
from synergon.stores.ordering import CORDONING, DEAD_NODE, NO_NODE, NODE_VERBS, Senseless
from synergon.stores.postgres import limiting, operating, pools
from synergon.stores.postgres.session import Session


async def order(session: Session, new: NewOrder) -> OrderRecord:
    """Do it and write it down."""
    node_id: str | None = None
    outcome: str | None
    try:
        outcome = await _carry_out(session, new)
        node_id = new.subject if new.verb in NODE_VERBS else None
    except Senseless as senseless:
        outcome = senseless.outcome
    value = msgspec.json.encode(new.value).decode()
    return _record(await session.row("add_order", new.verb, new.subject, value, new.who, node_id, outcome))


async def _carry_out(session: Session, new: NewOrder) -> str | None:
    """What came of it; None: the node will say. Raises `Senseless` before anything is changed."""
    ordering.check(new)
    match new.verb:
        case "pause":
            return ordering.pause_outcome(done=(await operating.pause(session, [new.subject]))[0])
        case "resume":
            return ordering.resume_outcome(done=(await operating.resume(session, [new.subject]))[0])
        case "set_limit":
            value = ordering.limit_value(new)
            done = await limiting.set_limit(session, new.subject, value)
            return ordering.limit_outcome(new.subject, value, done=done)
        case "set_servers":
            pool = ordering.servers(new)
            done = await pools.set_servers(session, new.subject, pool)
            return ordering.servers_outcome(new.subject, pool, done=done)
        case "cancel":
            ids = [ordering.task_id(new)]
            return ordering.cancel_outcome((await operating.cancel(session, ids, ordering.why(new)))[0])
        case _:
            # Locked for good, against claims under way: when this is written down, nothing more is taken.
            is_alive = await session.value("lock_node", new.subject)
            if not is_alive:
                raise Senseless(NO_NODE if is_alive is None else DEAD_NODE)
            if new.verb in CORDONING:
                await session.run("cordon", new.subject)
            elif new.verb == "uncordon":
                await session.run("uncordon", new.subject)
            return None


def _record(row: Any) -> OrderRecord:
    order_id, verb, subject, value, who, ordered_at, done_at, outcome = row
    return OrderRecord(
        id=order_id,
        verb=verb,
        subject=subject,
        value=msgspec.json.decode(value),
        who=who,
        ordered_at=ordered_at,
        done_at=done_at,
        outcome=outcome,
    )


async def orders(session: Session, limit: int, node_id: str | None) -> list[OrderRecord]:
    """The latest, or what a node has yet to do."""
    if node_id is None:
        return [_record(row) for row in await session.rows("orders", limit)]
    return [_record(row) for row in await session.rows("open_orders", node_id, limit)]


async def order_done(session: Session, order_id: int, outcome: str) -> bool:
    """Write down what the node says; False: it has been said."""
    return await session.run("order_done", order_id, outcome) == 1
