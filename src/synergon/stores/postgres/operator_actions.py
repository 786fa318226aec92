"""Orders: what people told the engine to do, and what came of it."""

from __future__ import annotations

from typing import Any

import msgspec

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.stores.postgres import limits, operations, servers
from synergon.stores.postgres.session import Session
from synergon.stores.rules import action_texts
from synergon.stores.rules.action_texts import CORDONING, DEAD_NODE, NO_NODE, NODE_VERBS, Rejected


async def act(session: Session, new: NewAction) -> AuditRecord:
    """Do it and write it down."""
    node_id: str | None = None
    outcome: str | None
    try:
        outcome = await _carry_out(session, new)
        node_id = new.subject if new.verb in NODE_VERBS else None
    except Rejected as senseless:
        outcome = senseless.outcome
    value = msgspec.json.encode(new.value).decode()
    return _record(await session.row("add_action", new.verb, new.subject, value, new.who, node_id, outcome))


async def _carry_out(session: Session, new: NewAction) -> str | None:
    """What came of it; None: the node will say. Raises `Rejected` before anything is changed."""
    action_texts.check(new)
    match new.verb:
        case "pause":
            return action_texts.pause_outcome(done=(await operations.pause(session, [new.subject]))[0])
        case "resume":
            return action_texts.resume_outcome(done=(await operations.resume(session, [new.subject]))[0])
        case "set_limit":
            value = action_texts.limit_value(new)
            done = await limits.set_limit(session, new.subject, value)
            done = done
            return action_texts.limit_outcome(new.subject, value, done=done)
        case "set_servers":
            pool = action_texts.servers(new)
            done = await servers.set_servers(session, new.subject, pool)
            done = done
            return action_texts.servers_outcome(new.subject, pool, done=done)
        case "cancel":
            ids = [action_texts.task_id(new)]
            return action_texts.cancel_outcome((await operations.cancel(session, ids, action_texts.why(new)))[0])
        case _:
            # Locked for good, against claims under way: when this is written down, nothing more is taken.
            is_alive = await session.value("lock_node", new.subject)
            if not is_alive:
                raise Rejected(NO_NODE if is_alive is None else DEAD_NODE)
            if new.verb in CORDONING:
                await session.run("cordon", new.subject)
            elif new.verb == "uncordon":
                await session.run("uncordon", new.subject)
            return None


def _record(row: Any) -> AuditRecord:
    action_id, verb, subject, value, who, requested_at, done_at, outcome = row
    return AuditRecord(
        id=action_id,
        verb=verb,
        subject=subject,
        value=msgspec.json.decode(value),
        who=who,
        requested_at=requested_at,
        done_at=done_at,
        outcome=outcome,
    )


async def audit(session: Session, limit: int, node_id: str | None) -> list[AuditRecord]:
    """The latest, or what a node has yet to do."""
    if node_id is None:
        return [_record(row) for row in await session.rows("audit", limit)]
    return [_record(row) for row in await session.rows("open_actions", node_id, limit)]


async def action_done(session: Session, action_id: int, outcome: str) -> bool:
    """Write down what the node says; False: it has been said."""
    return await session.run("action_done", action_id, outcome) == 1
