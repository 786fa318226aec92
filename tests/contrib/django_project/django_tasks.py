"""Enqueues tasks of `django.tasks`, and prints what became of them as JSON. The first argument says which part."""

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402  after the set-up
from django.db import transaction  # noqa: E402
from django.tasks import default_task_backend  # noqa: E402
from django.tasks.signals import task_enqueued  # noqa: E402
from django.utils import timezone  # noqa: E402
from shop import background  # noqa: E402
from shop.models import Order  # noqa: E402

from synergon.contrib.django import engine  # noqa: E402


def error_of(function: Callable[[], Any]) -> str:
    """The type and text of what a function raises."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  the test says which
        return f"{type(error).__name__}: {error}"
    return "none"


def enqueue() -> dict[str, Any]:
    """Enqueue in every way. Returns ids by name."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    announced: list[str] = []
    task_enqueued.connect(lambda task_result, **_: announced.append(task_result.id), weak=False)
    with transaction.atomic():
        order = Order.objects.create()
        joined = background.ship.enqueue(order.id)
    try:
        with transaction.atomic():
            lost = background.ship.enqueue(order.id)
            raise ValueError("sold out")
    except ValueError:
        pass
    results = {
        "joined": joined,
        "lost": lost,
        "async": asyncio.run(background.ship_async.aenqueue(order.id, state="at sea")),
        "context": background.attempts.using(queue_name="heavy").enqueue(),
        "failed": background.fail.enqueue("why"),
        "first": background.note.using(priority=100).enqueue("first"),
        "last": background.note.using(priority=-100).enqueue("last"),
        "later": background.note.using(run_after=timezone.now() + timedelta(days=1)).enqueue("later"),
        "of a module": background.enqueue_late.enqueue(),
        "cancelled": background.note.enqueue("cancelled"),
    }
    engine.cancel_sync(int(results["cancelled"].id), "not needed")
    later = engine.get_sync(int(results["later"].id))
    assert later.run_at == results["later"].task.run_after, "it is deferred"
    engine.cancel_sync(later.id, "tests do not wait for a day")
    assert results["joined"].status == "READY"
    assert announced == [result.id for result in results.values()]
    foreign = engine.call("not_of_django", x=1)
    (handle,) = engine.enqueue_sync([foreign])
    return {name: result.id for name, result in results.items()} | {"foreign": str(handle.id)}


def describe(result_id: str) -> dict[str, Any]:
    """A result, as Django reports it."""
    result = default_task_backend.get_result(result_id)
    return {
        "task": result.task.module_path,
        "status": result.status.value,
        "args": result.args,
        "kwargs": result.kwargs,
        "value": result.return_value if result.status == "SUCCESSFUL" else None,
        "attempts": result.attempts,
        "errors": [error.exception_class_path for error in result.errors],
        "classes": [error.exception_class.__name__ for error in result.errors],
        "priority": result.task.priority,
        "queue": result.task.queue_name,
        "is_finished": result.is_finished,
        "times": [getattr(result, f"{name}_at") is not None for name in ("enqueued", "started", "finished")],
    }


def read(ids: dict[str, str]) -> dict[str, Any]:
    """What became of the tasks, and the errors of wrong uses."""
    mistakes = {
        "lost": error_of(lambda: default_task_backend.get_result(ids["lost"])),
        "foreign": error_of(lambda: default_task_backend.get_result(ids["foreign"])),
        "no id": error_of(lambda: default_task_backend.get_result("shop.tasks.ship")),
        "mismatch": error_of(lambda: background.note.get_result(ids["joined"])),
        "queue": error_of(lambda: background.attempts.using(queue_name="nowhere")),
        "backend": error_of(lambda: background.note.using(backend="processes", queue_name="heavy")),
        "not json": error_of(lambda: background.note.enqueue(object())),
    }
    known = {name: describe(result_id) for name, result_id in ids.items() if name not in ("lost", "foreign")}
    refreshed = asyncio.run(background.ship.aget_result(ids["joined"]))
    refreshed.refresh()
    known["joined"]["refreshed"] = refreshed.return_value
    return {"mistakes": mistakes, "results": known, "order": Order.objects.get().state}


def check_path_in_row() -> None:
    """Store a task whose kind is the path of a function that no installed app imports as a task."""
    engine.enqueue_sync([engine.call("os.getcwd", args=[], kwargs={})])


part, *given = sys.argv[1:]
if part == "enqueue":
    ids = enqueue()
    check_path_in_row()
    print(json.dumps(ids))
else:
    print(json.dumps(read(json.loads(given[0]))))
