"""The route of errors: failed tasks, grouped by what they failed with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord
from synergon.web import documents
from synergon.web.access import Role
from synergon.web.routes import ApiCall, Route
from synergon.web.task_routes import TaskConditions, parse_meta, reject_secret_names, take_visible_filters
from synergon.web.visible_tasks import VisibleError, last_error, matches

MOST_GROUPED: Final = 1000
"""How many tasks are grouped, the newest ones."""


class ErrorListQuery(TaskConditions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks are grouped, as in a listing. Without states, failed ones."""

    meta: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Group:
    """Tasks with one error. The newest one was added first."""

    error: VisibleError
    newest: TaskRecord
    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    moments: list[datetime] = field(default_factory=list)

    def add(self, task: TaskRecord) -> None:
        self.count += 1
        self.kinds[task.kind] += 1
        if task.finished_at is not None:
            self.moments.append(task.finished_at)

    def document(self, call: ApiCall) -> dict[str, Any]:
        return {
            "fingerprint": self.error.fingerprint,
            "type": self.error.type,
            "message": self.error.message,
            "count": self.count,
            "kinds": dict(self.kinds.most_common()),
            "first_at": min(self.moments, default=None),
            "last_at": max(self.moments, default=None),
            "newest": call.redactor.task(self.newest),
        }


async def list_errors(call: ApiCall) -> Any:
    """Group failed tasks by their last error, the commonest first. Errors that differ only in numbers, ids and quoted
    texts are one. At most the newest 1000 tasks that match are grouped."""
    given = {name: value for name, value in msgspec.structs.asdict(call.query).items() if value is not None}
    given.setdefault("state", (State.FAILED,))
    if "meta" in given:
        given["meta"] = dict(parse_meta(word) for word in given["meta"])
    reject_secret_names(given.get("meta"))
    only = given.pop("error", None)
    wanted = take_visible_filters(call, given)
    page = await call.engine.tasks(**given, limit=MOST_GROUPED)
    groups: dict[str, _Group] = {}
    for task in page:
        if wanted and not matches(call.redactor.task(task), wanted):
            continue
        error = last_error(call.redactor, task)
        if only not in (None, error.fingerprint):
            continue
        group = groups.setdefault(error.fingerprint, _Group(error, task))
        group.add(task)
    ordered = sorted(groups.values(), key=lambda group: -group.count)
    return {
        "errors": [group.document(call) for group in ordered],
        "grouped": sum(group.count for group in ordered),
        "is_cut": page.next is not None,
    }


ROUTES: Final = (
    Route(
        method="GET",
        role=Role.READ,
        path="/errors",
        handle=list_errors,
        query=ErrorListQuery,
        answer=documents.ErrorList,
    ),
)
