"""Reads the dependencies of claimed tasks before their attempts start, and puts their results into the arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from synergon.call import Configured, Enqueueable
from synergon.errors import PayloadError
from synergon.model.claims import Claim
from synergon.model.dependencies import RESULTS_LIMIT_BYTES, Dependency
from synergon.model.tasks import NewTask
from synergon.node.attempts.attempt import Attempt
from synergon.options.dependency_options import StoredReference
from synergon.options.options import Placement
from synergon.options.overrides import Overrides
from synergon.options.payload import with_results
from synergon.stores.base import Store
from synergon.task import AnyTask

MOST_SHOWN: Final = 100
"""The maximum number of characters of an item in an error message."""
NULL: Final = msgspec.Raw(b"null")


class DependencyReader:
    """Holds attempts back until their dependencies, with the results, are read. Tasks that are claimed together share
    one call of the store. An attempt that is asked to end does not wait any longer."""

    def __init__(self, store: Store, submit: Callable[[Iterable[Attempt]], None]) -> None:
        self._store = store
        self._submit = submit

    def hold_back(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Start to read the dependencies of those attempts that need them, and submit these attempts afterwards.
        Returns the others, which can start at once."""
        at_once: list[Attempt] = []
        dependent: list[Attempt] = []
        for attempt in attempts:
            needing = [item for item in attempt.items if _needs_dependencies(item)]
            dependent += needing
            if needing:
                attempt.held_back_by = self
            else:
                at_once.append(attempt)
        if dependent:
            ids = [item.claim.id for item in dependent]
            reading = asyncio.ensure_future(self._store.dependencies(ids, with_results=True))
            reading.add_done_callback(lambda _: self._note(reading, dependent))
        return at_once

    def let_go(self, attempt: Attempt) -> None:
        """Submit an attempt that is held back: it was asked to end."""
        attempt.held_back_by = None
        self._submit([attempt])

    def _note(self, reading: asyncio.Future[list[list[Dependency]]], dependent: Sequence[Attempt]) -> None:
        """Pass each attempt its own dependencies, or the error of the read."""
        error = asyncio.CancelledError() if reading.cancelled() else reading.exception()
        for index, item in enumerate(dependent):
            if error is None:
                item.dependencies = tuple(reading.result()[index])
            else:
                item.dependency_error = error
        ready: list[Attempt] = []
        for attempt in (item.leader or item for item in dependent):
            if attempt.held_back_by is not None:  # else it was asked to end, or is another item of a batch
                attempt.held_back_by = None
                ready.append(attempt)
        self._submit(ready)


def _needs_dependencies(attempt: Attempt) -> bool:
    """Whether the arguments or the function of a task need the results of its dependencies."""
    overrides, task_type = attempt.overrides, attempt.task_type
    if not attempt.claim.has_dependencies:
        return False
    if overrides is not None and (overrides.results or overrides.result_items or overrides.item is not None):
        return True
    return bool(task_type.signature.injected or task_type.around)


def fill_in_results(payload: bytes, overrides: Overrides, dependencies: Sequence[Dependency]) -> bytes:
    """The payload, with references to results replaced by the results. Raises PayloadError if the results are too large
    together."""
    whole = {
        name: _value(reference, dependencies, f"argument {name!r}") for name, reference in overrides.results.items()
    }
    items = {
        name: {
            int(index): _value(reference, dependencies, f"item {index} of {name!r}")
            for index, reference in references.items()
        }
        for name, references in overrides.result_items.items()
    }
    return with_results(payload, whole, items)


def _value(reference: StoredReference, dependencies: Sequence[Dependency], what: str) -> msgspec.Raw:
    """The JSON for a reference: the result of a task (null if it did not succeed) or, for a map, the list of the
    results of its items that succeeded."""
    found = [entry for entry in dependencies if entry.position == reference.position]
    for entry in found:
        if entry.is_open:
            raise NotEndedError(f"{what} is the result of task {entry.task_id}, which runs again")
        if entry.succeeded and entry.result_json is None:
            raise PayloadError(
                f"{what} is the result of task {entry.task_id} ({entry.kind}), but the results of all tasks that this "
                f"one depends on have more than {RESULTS_LIMIT_BYTES // 2**20} MiB together; store them elsewhere and "
                "return references"
            )
    if reference.is_list:
        parts = [entry.result_json or NULL for entry in found if entry.item is not None and entry.succeeded]
        return msgspec.Raw(msgspec.json.encode(parts))
    return next((entry.result_json or NULL for entry in found if entry.item is None), NULL)


class NotEndedError(Exception):
    """A dependency was retried between the claim and the read of its result."""


def describe_unsuccessful(overrides: Overrides, dependencies: Sequence[Dependency]) -> str:
    """A text to append to the error of arguments that do not fit. It names the tasks that did not succeed and whose
    results are arguments. Empty if there are none."""
    positions = {reference.position for reference in _single_references(overrides)}
    failed = [entry for entry in dependencies if entry.position in positions and not entry.succeeded]
    if not failed:
        return ""
    names = ", ".join(f"task {entry.task_id} ({entry.kind}) {entry.state or 'was deleted'}" for entry in failed[:5])
    return f"; {names}, so its result is null: let the argument be None, or use if_dependency_fails='cancel'"


def _single_references(overrides: Overrides) -> Iterable[StoredReference]:
    yield from (reference for reference in overrides.results.values() if not reference.is_list)
    for references in overrides.result_items.values():
        yield from references.values()


def items_of_map(
    item: NewTask, task_type: AnyTask, claim: Claim, dependencies: Sequence[Dependency]
) -> tuple[NewTask, ...]:
    """The tasks that the map of this claim creates: one for each item of the result of its first dependency."""
    source = next((entry for entry in dependencies if entry.position == 0), None)
    if source is not None and source.is_open:
        raise NotEndedError(f"task {source.task_id} runs again")
    try:
        values = msgspec.json.decode(b"null" if source is None or source.result_json is None else source.result_json)
    except msgspec.DecodeError as error:
        raise PayloadError(f"the result that task {task_type.kind!r} is mapped over cannot be read: {error}") from error
    if not isinstance(values, list):
        which = "a task that is not known" if source is None else f"task {source.task_id} ({source.kind})"
        raise PayloadError(
            f"a map needs a list, but the result of {which} is {type(values).__name__}; nothing was created"
        )
    kind = task_type if item.title is None else Configured(task_type, Placement(title=item.title))
    items = tuple(_item(item, kind, claim, value) for value in values)
    _check_keys(items, task_type)
    return items


def _check_keys(items: Sequence[NewTask], task_type: AnyTask) -> None:
    """Raise PayloadError if two items have the same unique key: there would be one task for both."""
    numbers: dict[str, int] = {}
    for number, item in enumerate(items):
        if item.key is None:
            continue
        first = numbers.setdefault(item.key, number)
        if first != number:
            raise PayloadError(
                f"a map creates one task for each item, but the items {first} ({_shown(items[first])}) and {number} "
                f"({_shown(item)}) have the same unique key {item.key!r} of task {task_type.kind!r}; nothing was "
                "created: remove repeated items from the list, or give each item a key of its own"
            )


def _shown(item: NewTask) -> str:
    text = item.payload.decode()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _item(item: NewTask, kind: Enqueueable[..., Any], claim: Claim, value: object) -> NewTask:
    made = kind.call_of_item(value).to_new_task()
    return msgspec.structs.replace(
        item,
        payload=made.payload,
        key=item.key or made.key,
        limit_key=made.limit_key,
        title=made.title,
        fair_key=made.fair_key,
        fair_step=item.fair_step or made.fair_step,
        meta=claim.meta,
        group_id=claim.group_id,
    )
