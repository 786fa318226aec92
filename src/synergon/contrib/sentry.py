"""Errors of tasks in Sentry: `instrument(engine)`. Needs the package `sentry-sdk`, which the application configures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.utils import event_from_exception
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(f"reports to Sentry need the package {_error.name!r}: pip install sentry-sdk") from _error

from synergon.context import Context
from synergon.contrib.attempt_errors import AttemptError, errors_of
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.log_records import running_task
from synergon.model.outcomes import ErrorRecord
from synergon.model.printable import task_logger
from synergon.options.middleware_checks import CallNext

if TYPE_CHECKING:
    from sentry_sdk.types import Event


def instrument(engine: Engine) -> None:
    """Send the errors of task functions to Sentry, with the tags `task_id`, `kind`, `attempt`, `queue` and `node`. Call
    it once, where the engine is made."""
    if report_errors in engine._middlewares:
        raise OptionError("the engine reports to Sentry already; call instrument(engine) once, where it is made")
    engine.middleware(report_errors)
    # Otherwise Sentry would make a second event of the line which says that the task has failed.
    ignore_logger(task_logger(engine.logger).name)


async def report_errors(ctx: Context, call_next: CallNext) -> object:
    """The middleware that reports errors of task functions. Reports that the task function sends itself get the tags of
    the task, too."""
    with sentry_sdk.isolation_scope() as scope:
        task = running_task.get()
        scope.set_tags({**_tags(ctx.task_id, ctx.attempt), "kind": ctx.kind, "queue": ctx.queue})
        if task is not None:
            scope.set_tag("node", task.node)
        try:
            return await call_next()
        except BaseException as error:
            for found in errors_of(ctx, error):
                _report(found)
            raise


def _tags(task_id: int, attempt: int) -> dict[str, str]:
    return {"task_id": str(task_id), "attempt": str(attempt)}


def _report(found: AttemptError) -> None:
    tags = _tags(found.item.task_id, found.item.attempt)
    if isinstance(found.error, ErrorRecord):  # only its text is known in this process
        values = [{"type": found.error.type, "value": found.error.message}]
        event: Event = {
            "level": "error",
            "exception": {"values": values},
            "extra": {"traceback": found.error.traceback},
        }
        hint: dict[str, Any] = {}
    else:
        options = sentry_sdk.get_client().options
        mechanism = {"type": "synergon", "handled": False}
        event, hint = event_from_exception(found.error, client_options=options, mechanism=mechanism)
    sentry_sdk.capture_event(event, hint=hint, tags=tags)
