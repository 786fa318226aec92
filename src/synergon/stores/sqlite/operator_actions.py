"""Orders: what people told the engine to do, and what came of it."""

from __future__ import annotations

from typing import Any

import msgspec

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.record import to_datetime
from synergon.stores.rules import action_texts
from synergon.stores.rules.action_texts import CORDONING, DEAD_NODE, NO_NODE, NODE_VERBS, Rejected
from synergon.stores.sqlite import limits, nodes, operations, servers
from synergon.stores.sqlite.transaction import Transaction


def act(transaction: Transaction, new: NewAction) -> AuditRecord:
    """Do it and write it down."""
    now, node_id = transaction.now, None
    outcome: str | None
    try:
        outcome = _carry_out(transaction, new)
        node_id = new.subject if new.verb in NODE_VERBS else None
    except Rejected as senseless:
        outcome = senseless.outcome
    action_id = transaction.next_id()
    done_at = None if outcome is None else now
    transaction.run("add_action", action_id, new.verb, new.subject, _json(new), new.who, node_id, now, done_at, outcome)
    return _record(action_id, new.verb, new.subject, _json(new), new.who, now, done_at, outcome)


def _json(new: NewAction) -> bytes:
    return msgspec.json.encode(new.value)


def _carry_out(transaction: Transaction, new: NewAction) -> str | None:
    """What came of it; None: the node will say. Raises `Rejected` before anything is changed."""
    action_texts.check(new)
    match new.verb:
        case "pause":
            return action_texts.pause_outcome(done=operations.pause(transaction, [new.subject])[0])
        case "resume":
            return action_texts.resume_outcome(done=operations.resume(transaction, [new.subject])[0])
        case "set_limit":
            value = action_texts.limit_value(new)
            return action_texts.limit_outcome(
                new.subject, value, done=limits.set_limit(transaction, new.subject, value)
            )
        case "set_servers":
            pool = action_texts.servers(new)
            return action_texts.servers_outcome(
                new.subject, pool, done=servers.set_servers(transaction, new.subject, pool)
            )
        case "cancel":
            ids = [action_texts.task_id(new)]
            return action_texts.cancel_outcome(operations.cancel(transaction, ids, action_texts.why(new))[0])
        case _:
            if transaction.row("node", new.subject) is None:
                raise Rejected(NO_NODE)
            if nodes.lease_and_cordon(transaction, new.subject)[0] <= 0:
                raise Rejected(DEAD_NODE)
            _close_or_open(transaction, new)
            return None


def _close_or_open(transaction: Transaction, new: NewAction) -> None:
    """The node may claim nothing, or may again, from this commit on; it need not have heard of the order."""
    if new.verb in CORDONING:
        transaction.run("cordon", transaction.now, new.subject)
    elif new.verb == "uncordon":
        transaction.run("uncordon", new.subject)


def _record(
    action_id: int,
    verb: Any,
    subject: str,
    value: bytes,
    who: str,
    requested_at: int,
    done_at: int | None,
    outcome: str | None,
) -> AuditRecord:
    return AuditRecord(
        id=action_id,
        verb=verb,
        subject=subject,
        value=msgspec.json.decode(value),
        who=who,
        requested_at=to_datetime(requested_at),
        done_at=to_datetime(done_at) if done_at is not None else None,
        outcome=outcome,
    )


def audit(transaction: Transaction, limit: int, node_id: str | None) -> list[AuditRecord]:
    """The latest, or what a node has yet to do."""
    if node_id is None:
        return [_record(*row) for row in transaction.rows("audit", limit)]
    return [_record(*row) for row in transaction.rows("open_actions", node_id, limit)]


def action_done(transaction: Transaction, action_id: int, outcome: str) -> bool:
    """Write down what the node says; False: it has been said."""
    return transaction.run("action_done", transaction.now, outcome, action_id) == 1


def prune(transaction: Transaction, before: int, limit: int) -> None:
    """Forget what was ordered earlier; the oldest come first."""
    transaction.run("prune_audit", limit, before)
