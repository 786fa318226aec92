"""Operator actions: carries them out, and stores them in the audit with their outcomes.

`stores.rules.action_texts` parses the values of actions, and makes the texts of their outcomes.
"""

from __future__ import annotations

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.options.durations import rough
from synergon.stores.rules import action_texts, flows, groups, limits, operations, retention, schedules, servers
from synergon.stores.rules.action_texts import CORDONING, DEAD_NODE, NO_NODE, Rejected
from synergon.stores.session import Session


async def act(session: Session, action: NewAction) -> AuditRecord:
    """Carry out an action and record it in the audit. A rejected action changes nothing, and is recorded, too."""
    outcome: str | None
    try:
        outcome = await _carry_out(session, action)
    except Rejected as rejection:
        outcome = rejection.outcome
    return await session.audit.add(action, outcome)


async def _carry_out(session: Session, action: NewAction) -> str | None:
    """Carry out an action. Returns its outcome, or None if a node or an engine will report it. Raises `Rejected` before
    anything is changed."""
    action_texts.check(action)
    subject = action.subject
    match action.verb:
        case "pause":
            (done,) = await operations.pause(session, [subject])
            return action_texts.pause_outcome(done=done)
        case "resume":
            (done,) = await operations.resume(session, [subject])
            return action_texts.resume_outcome(done=done)
        case "set_limit":
            change = action_texts.limit_change(action)
            before = {limit.name: limit for limit in await session.limits.all()}.get(subject)
            done = await limits.set_limit(session, subject, change.value, change.rate)
            return action_texts.limit_outcome(subject, before, change, done=done)
        case "set_servers" | "add_server" | "remove_server" | "close_server":
            return await _change_pool(session, action)
        case "set_retention":
            cutoffs = action_texts.retention(action)
            await retention.set_retention(session, cutoffs)
            return action_texts.retention_outcome(cutoffs)
        case "cancel":
            (moved,) = await operations.cancel(session, [action_texts.task_id(action)], action_texts.why(action))
            return action_texts.cancel_outcome(moved)
        case "pause_schedule":
            return action_texts.schedule_outcome(
                await schedules.pause(session, subject), "paused", "was paused already"
            )
        case "resume_schedule":
            return action_texts.schedule_outcome(await schedules.resume(session, subject), "resumed", "was not paused")
        case "delete_schedule":
            return action_texts.schedule_outcome(await schedules.delete(session, subject) or None, "deleted", "")
        case "retry":
            (moved,) = await operations.retry(session, [action_texts.task_id(action)])
            return action_texts.retry_outcome(moved)
        case "delete":
            (moved,) = await operations.delete(session, [action_texts.task_id(action)])
            return action_texts.delete_outcome(moved)
        case "reschedule":
            (moved,) = await operations.reschedule(session, [action_texts.rescheduling(action)])
            return action_texts.moved_outcome(moved, "rescheduled")
        case "set_priority":
            (moved,) = await operations.set_priority(session, [action_texts.reprioritizing(action)])
            return action_texts.moved_outcome(moved, f"priority {action.value}")
        case "extend_timeout":
            extension = action_texts.extension(action)
            (moved,) = await operations.extend_timeout(session, [extension])
            return action_texts.moved_outcome(moved, f"{rough(extension.extra / 1_000_000)} more")
        case "update_meta":
            (meta,) = await operations.update_meta(session, [action_texts.meta_change(action)])
            return action_texts.meta_outcome(meta)
        case "cancel_group":
            moves = await groups.cancel_group(session, action_texts.task_id(action), action_texts.why(action))
            return action_texts.moves_outcome(moves, "cancelled")
        case "retry_flow":
            moves = await flows.retry_flow(session, action_texts.task_id(action))
            return action_texts.moves_outcome(moves, "retried")
        case "prune" | "cancel_all" | "retry_all" | "delete_all" | "reschedule_all" | "set_priority_all":
            return None  # the engine that recorded it reports its outcome
        case _:
            await _instruct_node(session, action)
            return None


async def _change_pool(session: Session, action: NewAction) -> str:
    """Replace the pool of a provider, or change one of its servers. Returns what has changed, with the old values."""
    provider = action.subject
    before = await servers.locked_pool(session, provider)
    if before is None:
        raise Rejected(action_texts.NO_PROVIDER)
    pool = action_texts.changed_pool(action, before)
    twice = await servers.counted_twice_in(session, provider, pool)
    if twice is not None:
        raise Rejected(f"{twice.problem}; {twice.advice}")
    await servers.set_servers(session, provider, pool)
    return action_texts.servers_outcome(provider, before, pool)


async def _instruct_node(session: Session, action: NewAction) -> None:
    """Set or remove the cordon mark of the node, as the action demands. Claims of the node obey the mark from the
    commit on, before the node reads the action."""
    node_id = action.subject
    has_lease = await session.nodes.lock_lease(node_id)
    if not has_lease:
        raise Rejected(NO_NODE if has_lease is None else DEAD_NODE)
    if action.verb in CORDONING:
        await session.nodes.cordon(node_id)
    elif action.verb == "uncordon":
        await session.nodes.uncordon(node_id)


async def action_done(session: Session, action_id: int, outcome: str) -> bool:
    """Write the outcome that a node or an engine reports for an action. False if the action has an outcome already."""
    return await session.audit.set_outcome(action_id, outcome)


async def audit(session: Session, limit: int = 100, node_id: str | None = None) -> list[AuditRecord]:
    """The latest actions, newest first. With `node_id`: the actions whose outcome this node has yet to report, oldest
    first."""
    return await (session.audit.latest(limit) if node_id is None else session.audit.open(node_id, limit))
