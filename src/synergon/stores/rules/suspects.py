"""Suspects: tasks whose process died while it ran them.

A suspect runs isolated, so that it can harm no other task: in a child process of its own, or alone on its node if its
function cannot run in a child. The mark is a part of the task's requirements. So suspects form ready groups of their
own, a claim takes no more of them than the node has free child processes, and all other tasks are claimed as before.

The mark is removed when an attempt of the task ends, except after a crash: a task that has crashed stays isolated. An
attempt that was handed back has not ended. A final task keeps the mark in its row. The mark counts only if no attempt
of the task has ended (`clears_suspicion`): such a task is isolated if an operator retries it.
"""

from __future__ import annotations

from synergon.model.outcomes import Crashed, Outcome, Retrying, ServerFault, Snoozed
from synergon.model.requirements import suspect_text
from synergon.policies import OWNER_DEATH_LIMIT
from synergon.stores.rows import LiveTask
from synergon.stores.session import Session


async def note_owner_death(session: Session, task: LiveTask) -> int:
    """Make a running task whose node has died a suspect. Returns how many of its owners have died in a row."""
    owner_deaths = min(task.owner_deaths, OWNER_DEATH_LIMIT) + 1  # a damaged row may have any number
    await session.tasks.set_owner_deaths(task.id, owner_deaths)
    await _mark(session, task, is_suspect=True)
    return owner_deaths


async def note_outcome(session: Session, task: LiveTask, outcome: Outcome) -> None:
    """Clear the suspicion against a running task that goes on after the end of an attempt, unless it has crashed."""
    if not isinstance(outcome, Retrying | Snoozed | Crashed | ServerFault):
        return
    has_crashed = isinstance(outcome, Crashed) or task.crashes > 0
    if task.owner_deaths:
        await session.tasks.set_owner_deaths(task.id, 0)
    await _mark(session, task, is_suspect=has_crashed)


async def _mark(session: Session, task: LiveTask, *, is_suspect: bool) -> None:
    """Set or clear the mark. An unchanged text is not written: if it is damaged, the damage stays visible."""
    text = suspect_text(task.requirements, is_suspect=is_suspect)
    if text != task.requirements:
        await session.tasks.set_requirements(task.id, text)
