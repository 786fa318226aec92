"""Tasks of `django.tasks`. Only `tasks.py` imports this module."""

import os
from typing import Any

from django.tasks import task
from django.tasks.signals import task_finished, task_started

from shop.models import Order


class SoldOut(Exception):
    """An error of the shop."""


log: list[str] = []
"""The signals of this process."""


@task
def ship(order_id: int, state: str = "shipped") -> int:
    """In a thread, with an argument that is left out."""
    Order.objects.filter(id=order_id).update(state=state)
    return os.getpid()


@task
async def ship_async(order_id: int, state: str) -> str:
    """On the event loop."""
    order = await Order.objects.aget(id=order_id)
    order.state = state
    await order.asave()
    return state


@task(backend="processes", queue_name="heavy", takes_context=True)
def attempts(context: Any) -> list[int]:
    """In a child process. The first attempts fail."""
    if context.attempt < 2:
        raise RuntimeError(f"attempt {context.attempt} of task {context.task_result.id}")
    return [context.attempt, len(context.task_result.errors)]


@task
def fail(why: str) -> None:
    """Fails with an error that is defined in a module."""
    raise SoldOut(why)


@task
def note(name: str) -> list[str]:
    """The signals and notes of this process so far."""
    log.append(name)
    return list(log)


@task
def enqueue_late() -> str:
    """Imports a module with a task while the worker runs, and enqueues the task."""
    from shop.late import late

    result_id: str = late.enqueue().id
    return result_id


def _record(sender: Any, task_result: Any, **_: Any) -> None:
    if task_result.task.name not in ("note", "enqueue_late"):
        log.append(f"{task_result.task.name} {task_result.status}")


task_started.connect(_record)
task_finished.connect(_record)
