"""Assigns the tags by which the tenants of a kind take turns.

Of the ready tasks of one kind and priority, the one with the smallest tag starts first. A task gets its tag when it
first becomes ready: the present turn of its kind and priority, or its tenant's largest live tag plus the tenant's step,
whichever is larger. So the tags of a tenant are one step apart however many tasks it has, and a tenant that had no task
joins at the present turn. The step is inversely proportional to the tenant's weight.

The present turn is the smallest tag of the ready tasks, except those of paused queues. If there is none, it is the
smallest tag of the ready tasks of paused queues, or the largest tag of the tasks that have started and are live,
whichever is larger.

A task that is cancelled, expires or is deleted costs its tenant no turn if no later task of the tenant has a tag.
Otherwise the later tasks retain their tags, and new tasks get larger ones, so that the tasks of a tenant start in the
order in which they became ready.

A retry retains its tag. A task that is rescheduled or gets another priority loses it, and gets a new one.

All tags are read from rows: there is no counter to repair, and no row that all producers would lock. Two transactions
that read at the same time may assign one turn twice, so that the tenant starts one task too early. Nothing else depends
on tags.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from synergon.model.tasks import NewTask
from synergon.stores.rows import FairTags, TenantName
from synergon.stores.session import Session

FIRST_TAG: Final = 1
LAST_TAG: Final = 2**62
"""Tags do not grow beyond this number. Tasks with this tag start in the order of their ids."""


async def with_tags(session: Session, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    """The new tasks, which have no unique keys, with tags for those that are ready at once."""
    tenants = {_tenant(task) for task in tasks if _is_ready_at_once(task)}
    if not tenants:
        return tasks
    turns = await _read_turns(session, tenants)
    return [
        replace(task, fair_tag=turns.next(_tenant(task), task.fair_step)) if _is_ready_at_once(task) else task
        for task in tasks
    ]


def _is_ready_at_once(task: NewTask) -> bool:
    is_delayed = task.delay is not None or task.run_at is not None or task.is_dependent
    return task.fair_key is not None and task.limit_key is None and not is_delayed


def _tenant(task: NewTask) -> TenantName:
    return task.kind, task.priority, task.fair_key or ""


async def tag(session: Session, ids: Collection[int]) -> None:
    """Assign tags to the tasks of `ids` that are ready and have a tenant, but no tag. Lower ids get earlier turns."""
    untagged = await session.fair.untagged(ids) if ids else []
    if untagged:
        turns = await _read_turns(session, {task.tenant for task in untagged})
        await session.fair.set_tags({task.id: turns.next(task.tenant, task.fair_step) for task in untagged})


class _Turns:
    """The next tags of tenants."""

    def __init__(self, starts: dict[tuple[str, int], int], last: dict[TenantName, int]) -> None:
        self._starts = starts
        """The smallest tag that a task of each kind and priority may get."""
        self._last = last
        """The largest tag of each tenant that has live tasks."""

    def next(self, tenant: TenantName, step: int) -> int:
        """The tag of the next task of a tenant."""
        kind, priority, _ = tenant
        last = self._last.get(tenant)
        tag = self._starts[kind, priority] if last is None else max(self._starts[kind, priority], last + max(step, 1))
        self._last[tenant] = tag = min(tag, LAST_TAG)
        return tag


async def _read_turns(session: Session, tenants: Collection[TenantName]) -> _Turns:
    found = await session.fair.tags(tenants)
    starts = {(kind, priority): _present_turn(tags) for (kind, priority, _), tags in found.items()}
    last = {tenant: tags.largest_live for tenant, tags in found.items() if tags.largest_live is not None}
    return _Turns(starts, last)


def _present_turn(tags: FairTags) -> int:
    if tags.smallest_ready is not None:
        return tags.smallest_ready
    return max(tags.smallest_paused or FIRST_TAG, tags.largest_started or FIRST_TAG)


async def ahead(session: Session, task_id: int, limit: int) -> dict[str, int]:
    """For a ready task: how many ready tasks of its kind precede it in claim order, by tenant."""
    return await session.fair.ahead(task_id, limit)
