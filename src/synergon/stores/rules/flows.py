"""Flows as a whole: lists them, and runs their tasks again. `rules.groups` stores them."""

from __future__ import annotations

from synergon.model.flows import FlowPage, FlowQuery, FlowRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.tasks import Moved
from synergon.stores.rules import dependencies, groups, operations
from synergon.stores.session import Session


async def list_flows(session: Session, query: FlowQuery) -> FlowPage:
    """One page of the matching flows, newest first."""
    ids = await session.groups.flows(query)
    page = ids[: query.limit]
    records = [record for record in await groups.groups(session, page) if record is not None]
    return FlowPage(
        flows=tuple(FlowRecord.of(record) for record in records),
        next=page[-1] if len(ids) > len(page) else None,
    )


async def retry_flow(session: Session, flow_id: int) -> list[Moved]:
    """Run again the tasks of a flow that failed or were cancelled, and the tasks that were cancelled because of them,
    even if an earlier retry left them out. Nothing changes if a live task holds the unique key of a task to retry. A
    task with a taken key that would come back only because of another task is left out instead."""
    ended = await session.tasks.final(await session.groups.final_tasks(flow_id))
    left = await dependencies.left_behind(
        session, [one.id for one in ended.values() if one.reason is Reason.DEPENDENCY]
    )
    again = [
        task
        for task in ended.values()
        if task.state is not State.SUCCEEDED and (task.reason is not Reason.DEPENDENCY or task.id in left)
    ]
    names = {(task.kind, task.key): task for task in again if task.key is not None}
    held = await session.tasks.key_holders(names) if names else {}
    if held:
        return [
            Moved(id=names[name].id, done=False, state=names[name].state, kind=name[0], key_holder=holder.id)
            for name, holder in held.items()
        ]
    return await operations.retry(session, sorted(task.id for task in again)) if again else []
