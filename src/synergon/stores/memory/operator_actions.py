"""Orders: what people told the engine to do, and what came of it."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.record import from_datetime, to_datetime
from synergon.stores.memory import operations, servers
from synergon.stores.memory.tables import Tables
from synergon.stores.rules import action_texts
from synergon.stores.rules.action_texts import CORDONING, DEAD_NODE, NO_NODE, NODE_VERBS, Rejected


def act(tables: Tables, new: NewAction, now: int) -> AuditRecord:
    """Do it and write it down."""
    outcome: str | None
    try:
        outcome = _carry_out(tables, new, now)
    except Rejected as senseless:
        outcome = senseless.outcome
    tables.last_action_id += 1
    record = tables.audit[tables.last_action_id] = _record(new, tables.last_action_id, now, outcome=outcome)
    return record


def _record(new: NewAction, action_id: int, now: int, *, outcome: str | None) -> AuditRecord:
    return AuditRecord(
        id=action_id,
        verb=new.verb,
        subject=new.subject,
        value=new.value,
        who=new.who,
        requested_at=to_datetime(now),
        done_at=None if outcome is None else to_datetime(now),
        outcome=outcome,
    )


def _carry_out(tables: Tables, new: NewAction, now: int) -> str | None:
    """What came of it; None: the node will say."""
    action_texts.check(new)
    match new.verb:
        case "pause":
            return action_texts.pause_outcome(done=operations.pause(tables, [new.subject], now)[0])
        case "resume":
            return action_texts.resume_outcome(done=operations.resume(tables, [new.subject], now)[0])
        case "set_limit":
            value = action_texts.limit_value(new)
            return action_texts.limit_outcome(
                new.subject, value, done=servers.set_limit(tables, new.subject, value, now)
            )
        case "set_servers":
            pool = action_texts.servers(new)
            return action_texts.servers_outcome(
                new.subject, pool, done=servers.set_servers(tables, new.subject, pool, now)
            )
        case "cancel":
            ids = [action_texts.task_id(new)]
            return action_texts.cancel_outcome(operations.cancel(tables, ids, action_texts.why(new), now)[0])
        case _:
            _tell_node(tables, new, now)
            return None


def _tell_node(tables: Tables, new: NewAction, now: int) -> None:
    node = tables.nodes.get(new.subject)
    if node is None:
        raise Rejected(NO_NODE)
    if not tables.is_leased(new.subject, now):
        raise Rejected(DEAD_NODE)
    if new.verb == "uncordon":
        node.cordoned_at = None
    elif new.verb in CORDONING and node.cordoned_at is None:
        node.cordoned_at = now


def audit(tables: Tables, limit: int, node_id: str | None) -> list[AuditRecord]:
    """The latest, or what a node has yet to do."""
    if node_id is None:
        return list(islice(reversed(tables.audit.values()), limit))
    undone = (record for record in tables.audit.values() if record.outcome is None and record.subject == node_id)
    return list(islice((record for record in undone if record.verb in NODE_VERBS), limit))


def action_done(tables: Tables, action_id: int, outcome: str, now: int) -> bool:
    """Write down what the node says; False: it has been said."""
    record = tables.audit.get(action_id)
    if record is None or record.outcome is not None:
        return False
    tables.audit[action_id] = replace(record, outcome=outcome, done_at=to_datetime(now))
    return True


def prune(tables: Tables, before: int, limit: int) -> None:
    """Forget what was ordered earlier; the oldest come first."""
    for record in list(islice(tables.audit.values(), limit)):
        if from_datetime(record.requested_at) < before:
            del tables.audit[record.id]
