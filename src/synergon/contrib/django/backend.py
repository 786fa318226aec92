"""A backend for `django.tasks`, which Django has from version 6 on.

    TASKS = {"default": {"BACKEND": "synergon.contrib.django.backend.SynergonBackend", "QUEUES": []}}

Each task of Django is a kind, named after its function. A worker runs those that it knows from the import of the
installed apps; a stored task names a kind, and no name out of a row is imported. OPTIONS are options of `@engine.task`
for all tasks of the backend, such as `retry` and `timeout`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any, Final

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from synergon.context import Context
from synergon.contrib.django.project_engine import connection_to_join, engine
from synergon.errors import ConfigurationError, Control, TaskNotFound
from synergon.model.lifecycle import State
from synergon.model.log_records import running_task
from synergon.model.outcomes import ErrorRecord
from synergon.model.task_records import TaskRecord

STATUS: Final = {
    State.WAITING: TaskResultStatus.READY,
    State.SCHEDULED: TaskResultStatus.READY,
    State.READY: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}

logger: Final = logging.getLogger("synergon")

_declared: Final[dict[str, Task]] = {}
"""The tasks of Django by their kind, as they were declared."""


class SynergonBackend(BaseTaskBackend):
    """Stores tasks of Django with the engine of the project."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task) -> None:
        """Check the task, and register it as a kind when it is declared."""
        super().validate_task(task)
        found = getattr(sys.modules.get(task.func.__module__), task.func.__name__, None)
        if isinstance(found, Task) and found.backend != task.backend:
            raise InvalidTask(
                f"{task.module_path} is declared with the backend {found.backend!r}, so workers do not run it with "
                f"{task.backend!r}; declare it with @task(backend={task.backend!r})"
            )
        if task.module_path not in _declared:
            self._declare(task)

    def _declare(self, task: Task) -> None:
        kind = task.module_path
        if engine._node is not None:
            logger.warning(
                "the task %s is declared while the worker runs, so this worker does not run it; declare it in a module "
                "that an installed app imports, such as tasks.py",
                kind,
            )
        else:
            options = {"queue": task.queue_name, "priority": task.priority, **self.options, "name": kind}
            try:
                engine._register(_task_function(task), options, task.func.__module__)
            except ConfigurationError as error:
                raise InvalidTask(f"{kind}: {error}") from error
        _declared[kind] = task

    def enqueue(self, task: Task, args: list[Any], kwargs: dict[str, Any]) -> TaskResult:
        """Store the task: in the open transaction of Django if the engine uses its database, otherwise at once."""
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(kwargs)
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):  # USE_TZ is off
            run_at = timezone.make_aware(run_at)
        call = engine.call(task.module_path, args=args, kwargs=kwargs).with_options(
            queue=task.queue_name, priority=int(task.priority), run_at=run_at
        )
        (handle,) = engine.enqueue_sync([call], conn=connection_to_join())
        result = _set(_new_result(task, str(handle.id), args, kwargs), enqueued_at=timezone.now())
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The current result of a task. Raises TaskResultDoesNotExist if it is no task of Django, or there is none."""
        try:
            record = engine.get_sync(int(result_id)) if str(result_id).isdecimal() else None
        except TaskNotFound:
            record = None
        task = None if record is None else _declared.get(record.kind)
        if record is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return _result_of_record(task, record)

    def check(self, **_: Any) -> list[CheckMessage]:
        """Report an error if the app is not installed: it imports the tasks."""
        if apps.is_installed("synergon.contrib.django"):
            return []
        return [
            Error(
                f"the backend {self.alias!r} of TASKS needs the app of synergon",
                hint='Add "synergon.contrib.django" to INSTALLED_APPS.',
                id="synergon.E001",
            )
        ]


# ------------------------------------------------------------ in a worker


def _task_function(task: Task) -> Callable[..., Any]:
    """Make the task function of the kind. It calls the function of the Django task, and sends the signals of Django."""

    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _running(task, ctx, args, kwargs)
        task_started.send_robust(SynergonBackend, task_result=result)
        try:
            value = normalize_json(task.func(*_leading(task, result), *args, **kwargs))
        except Control:
            raise
        except BaseException as error:
            task_finished.send_robust(SynergonBackend, task_result=_failed(result, error))
            raise
        task_finished.send_robust(SynergonBackend, task_result=_succeeded(result, value))
        return value

    async def run_coroutine(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _running(task, ctx, args, kwargs)
        await task_started.asend_robust(SynergonBackend, task_result=result)
        try:
            value = normalize_json(await task.func(*_leading(task, result), *args, **kwargs))
        except Control:
            raise
        except BaseException as error:
            await task_finished.asend_robust(SynergonBackend, task_result=_failed(result, error))
            raise
        await task_finished.asend_robust(SynergonBackend, task_result=_succeeded(result, value))
        return value

    function: Callable[..., Any] = run_coroutine if iscoroutinefunction(task.func) else run
    for name in ("__module__", "__name__", "__qualname__"):  # by which child processes find it
        setattr(function, name, getattr(task.func, name))
    return function


def _leading(task: Task, result: TaskResult) -> tuple[TaskContext, ...]:
    return (TaskContext(task_result=result),) if task.takes_context else ()


def _running(task: Task, ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> TaskResult:
    """The result as far as the attempt knows it. `refresh()` reads the rest, such as `enqueued_at`."""
    running = running_task.get()
    result = _new_result(task, str(ctx.task_id), args, kwargs)
    return _set(
        result,
        status=TaskResultStatus.RUNNING,
        started_at=timezone.now(),
        last_attempted_at=timezone.now(),
        worker_ids=["" if running is None else running.node] * ctx.attempt,
    )


def _succeeded(result: TaskResult, value: Any) -> TaskResult:
    return _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)


def _failed(result: TaskResult, error: BaseException) -> TaskResult:
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    described = TaskError(exception_class_path=path, traceback="".join(format_exception(error)))
    return _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now(), errors=[described])


# ------------------------------------------------------------ results


def _new_result(task: Task, result_id: str, args: list[Any], kwargs: dict[str, Any]) -> TaskResult:
    return TaskResult(
        task=task,
        id=result_id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def _set(result: TaskResult, **values: Any) -> TaskResult:
    """Change a result, which is frozen for all but its backend."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
    return result


def _result_of_record(task: Task, record: TaskRecord) -> TaskResult:
    with suppress(InvalidTask):  # the queue is no longer in QUEUES, or an operator has set another priority
        task = task.using(queue_name=record.queue, priority=record.priority)
    attempts = record.attempts_made
    return _set(
        _new_result(task, str(record.id), record.arguments["args"], record.arguments["kwargs"]),
        status=STATUS[record.state],
        enqueued_at=record.enqueued_at,
        started_at=attempts[0].started_at if attempts else record.started_at,
        last_attempted_at=attempts[-1].started_at if attempts else record.started_at,
        finished_at=record.finished_at,
        worker_ids=_worker_ids(record),
        errors=_errors(record),
        _return_value=record.result,
    )


def _worker_ids(record: TaskRecord) -> list[str]:
    """The node of each attempt. Django takes their number as the number of attempts, so the list has as many entries as
    there were counted attempts."""
    nodes = [attempt.node_id or "" for attempt in record.attempts_made]
    missing = [""] * (record.attempts - len(nodes))  # the store keeps the latest ones
    return [*missing, *nodes][-record.attempts :] if record.attempts else []


def _errors(record: TaskRecord) -> list[TaskError]:
    without_class = f"synergon.errors.{'TaskCancelled' if record.state is State.CANCELLED else 'TaskFailed'}"
    errors = [
        TaskError(exception_class_path=_class_path(error) or without_class, traceback=error.traceback or error.message)
        for error in record.errors
    ]
    if record.state is State.CANCELLED and not errors:
        errors.append(TaskError(exception_class_path=without_class, traceback=""))
    return errors


def _class_path(error: ErrorRecord) -> str | None:
    """The path of the error's class, from the last line of the traceback that names it. None without a traceback, as
    after a timeout."""
    found = re.findall(rf"^((?:\w+\.)*){re.escape(error.type)}(?:: |$)", error.traceback, re.MULTILINE)
    return f"{found[-1] or 'builtins.'}{error.type}" if found else None
