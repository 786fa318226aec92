"""Flows: tasks that depend on each other and are enqueued as one unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec
from msgspec.structs import replace

from synergon.async_calls import must_await
from synergon.call import Call, Enqueueable
from synergon.errors import OptionError, PayloadError
from synergon.model.dependencies import Need
from synergon.model.groups import NewGroup
from synergon.model.tasks import NewTask
from synergon.options.dependency_options import (
    After,
    IfDependencyFails,
    ResultReference,
    StoredReference,
    TaskReference,
    check_after,
    need_of,
    step_of,
)
from synergon.options.json_types import describe, item_types, json_types, text_of, with_article
from synergon.options.options import check_choice, check_name
from synergon.options.overrides import Overrides
from synergon.options.tenants import step_of_weight

if TYPE_CHECKING:
    from synergon.engine import Engine
    from synergon.flow_run import FlowRun

Value = TypeVar("Value")
Item = TypeVar("Item")


class Step(TaskReference, Generic[Value]):
    """A task of a flow that is not stored yet. Steps that run after it, or use its result, must be added to its
    flow."""

    __slots__ = ("_after", "_if_fails", "call", "flow", "index")

    def __init__(self, flow: Flow, index: int, call: Call[Any], after: After, if_fails: IfDependencyFails) -> None:
        self.flow: Final = flow
        self.index: Final = index
        self.call: Call[Any] = call
        self._after = after
        self._if_fails = if_fails

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    @property
    def name(self) -> str:
        """The number of the step in its flow, and its kind."""
        return f"{self.index + 1} ({self.call.kind})"

    @property
    def result(self) -> Value:
        """The result that the task will have. It can be a whole argument of a later step, or an item of a list. For
        type checkers it has the type of the result."""
        return cast("Value", ResultReference(self))

    @property
    def result_type(self) -> Any:
        """The annotation of its result."""
        task_type = self.call.task_type
        return Any if task_type is None else task_type.signature.result_type

    def _need_of(self, url: str | None) -> Need:  # noqa: ARG002  it is the base's
        """Raises OptionError: only its own flow can use the step."""
        raise OptionError(
            f"step {self.name} of flow {self.flow.name!r} is not stored yet; what comes after it must be added to that "
            "flow with flow.add(...)"
        )

    def to_new_task(self, origin: str | None) -> NewTask:
        """Make the record for the store. Its dependencies name steps by their indexes in the flow."""
        task = self.call.without_references(origin)
        if task.on_conflict == "replace":
            raise OptionError(f"step {self.name} has on_conflict='replace'; a flow needs tasks of its own")
        steps = _Needs(self)
        overrides = steps.add_references(_overrides_of(task))
        for entry in self._after:
            steps.add(entry)
        return replace(
            task,
            after=tuple(steps.needs),
            if_dependency_fails=self._if_fails,
            overrides=overrides,
            on_conflict="raise",
        )


class MapStep(Step[Any], Generic[Item]):
    """A step that creates one task for each item of the result of `over`, when that step has succeeded."""

    __slots__ = ("over",)

    def __init__(
        self, flow: Flow, index: int, call: Call[Any], over: Step[Any], after: After, if_fails: IfDependencyFails
    ) -> None:
        super().__init__(flow, index, call, after, if_fails)
        self.over: Final = over

    @property
    def result(self) -> Any:
        """Raises PayloadError: a map has the results of its items."""
        raise PayloadError(f"step {self.name} is a map, which has several results; use its `results`")

    @property
    def results(self) -> list[Item]:
        """The results of the tasks that the map creates, in the order of the items, as an argument of a later step.
        With `if_dependency_fails="run"`, tasks that did not succeed are left out."""
        return cast("list[Item]", ResultReference(self, is_list=True))

    def to_new_task(self, origin: str | None) -> NewTask:
        """Make the record of the map: the task that creates one task for each item. It has the queue, the priority, the
        requirements, the tags, the metadata and the number of attempts of the items. All options of the call apply to
        the items: the title stays a template, which each item fills with its argument, and the weight is kept as the
        step of the item's tenant. Raises OptionError unless `on_conflict` is "return"."""
        placement = self.call.placement
        item = self.call.without_references(has_title=False)
        if item.on_conflict != "return":
            raise OptionError(
                f"step {self.name} is a map and has on_conflict={item.on_conflict!r}; an item whose unique key a task "
                f"holds gets that task: write flow.map({self.call.kind}.with_options(on_conflict='return'), ...)"
            )
        item = replace(
            item,
            title=placement.title,
            fair_step=0 if placement.weight is None else step_of_weight(placement.weight),
        )
        steps = _Needs(self)
        steps.add(self.over)
        for entry in self._after:
            steps.add(entry)
        return NewTask(
            kind=item.kind,
            queue=item.queue,
            priority=item.priority,
            requirements=item.requirements,
            max_attempts=item.max_attempts,
            tags=item.tags,
            meta=item.meta,
            origin=origin,
            after=tuple(steps.needs),
            if_dependency_fails=self._if_fails,
            overrides=msgspec.json.encode(Overrides(item=item)),
        )


class _Needs:
    """The dependencies of one step, without duplicates."""

    def __init__(self, step: Step[Any]) -> None:
        self._step = step
        self._positions: dict[Any, int] = {}
        self.needs: list[Need] = []

    def add(self, entry: Any) -> int:
        """Add a dependency on a task or an earlier step. Returns its position among the dependencies."""
        need = self._need(entry)
        key = (need.task_id, need.step)
        if key not in self._positions:
            self._positions[key] = len(self.needs)
            self.needs.append(need)
        return self._positions[key]

    def _need(self, entry: Any) -> Need:
        if isinstance(entry, Step):
            if entry.flow is not self._step.flow:
                raise OptionError(f"step {self._step.name} uses step {entry.name} of another flow, {entry.flow.name!r}")
            return Need(step=entry.index)
        return need_of(entry, self._step.flow.url)

    def add_references(self, overrides: Overrides) -> bytes | None:
        """Add dependencies on the steps whose results are arguments. Returns `overrides` as JSON, with the place of
        each result in the arguments; None if they are empty."""
        results: dict[str, StoredReference] = {}
        items: dict[str, dict[str, StoredReference]] = {}
        for name, found in (self._step.call.references or {}).items():
            for index, reference in found.items():
                stored = StoredReference(self.add(step_of(reference)), reference.is_list)
                if index is None:
                    results[name] = stored
                else:
                    items.setdefault(name, {})[str(index)] = stored
        if results or items:
            overrides = replace(overrides, results=results, result_items=items)
        return None if overrides == Overrides() else msgspec.json.encode(overrides)


def _overrides_of(task: NewTask) -> Overrides:
    return Overrides() if task.overrides is None else msgspec.json.decode(task.overrides, type=Overrides)


class Flow:
    """Steps that are enqueued together, all or none. A step can only use steps that were added before it, so there are
    no circles."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name: Final = check_name(name, "a flow's name")
        self._engine = engine
        self._steps: list[Step[Any]] = []
        self._is_enqueued = False

    def __repr__(self) -> str:
        return f"<Flow {self.name!r} of {len(self._steps)} steps>"

    @property
    def url(self) -> str:
        """The URL of the database that the flow is for."""
        return self._engine.settings.url

    def add(
        self,
        call: Call[Value],
        *,
        after: Iterable[TaskReference | int] = (),
        if_dependency_fails: IfDependencyFails | None = None,
    ) -> Step[Value]:
        """Add a step. It runs when the steps whose results are its arguments, and those of `after`, have succeeded;
        with `if_dependency_fails="run"`, when they have ended in whatever way."""
        if not isinstance(call, Call):
            raise OptionError(f"flow.add takes a call, got {call!r}; write flow.add(greet.call(...))")
        step: Step[Value] = Step(self, len(self._steps), call, *self._options(call, after, if_dependency_fails))
        for name, found in (call.references or {}).items():
            for index, reference in found.items():
                _check_reference(step, name, reference, is_item=index is not None)
        self._append(step)
        return step

    def map(
        self,
        kind: Enqueueable[..., Item],
        *,
        over: Step[Any],
        after: Iterable[TaskReference | int] = (),
        if_dependency_fails: IfDependencyFails | None = None,
    ) -> MapStep[Item]:
        """Add a step that creates one task of this kind for each item of the result of `over`, with the item as its
        first argument."""
        if not isinstance(kind, Enqueueable):
            raise OptionError(f"flow.map takes a task function, got {kind!r}; write flow.map(render, over=step)")
        if not isinstance(over, Step) or isinstance(over, MapStep):
            raise OptionError(f"over must be a step of this flow whose result is a list, got {over!r}")
        call = kind.call_without_arguments()
        options = self._options(call, after, if_dependency_fails)
        step: MapStep[Item] = MapStep(self, len(self._steps), call, over, *options)
        _check_map(step)
        self._append(step)
        return step

    def _options(
        self, call: Call[Any], after: Iterable[TaskReference | int], if_fails: IfDependencyFails | None
    ) -> tuple[After, IfDependencyFails]:
        self._check_is_new()
        if call.placement.conn is not None:
            raise OptionError("conn cannot be given for a step; write flow.enqueue(conn=...)")
        given = if_fails or call.placement.if_dependency_fails
        checked: IfDependencyFails = check_choice(given, ("cancel", "run"), "if_dependency_fails")
        return (*call.placement.after, *check_after(after)), checked

    def _check_is_new(self) -> None:
        if self._is_enqueued:
            raise OptionError(
                f"flow {self.name!r} is enqueued already; build another one with engine.flow(...), also if the "
                "transaction that it was part of was rolled back"
            )

    def _append(self, step: Step[Any]) -> None:
        _Needs(step).add_references(Overrides())  # steps of other flows are a mistake here
        call = step.call
        step.call = Call(
            call.kind,
            call.payload,
            replace(call.placement, after=(), if_dependency_fails="cancel"),
            call.task_type,
            call.limit_key,
            call.key,
            call.tenant,
            call.references,
            call.url,
        )
        step.to_new_task(None)  # so are steps of other flows in `after`, and titles over results
        self._steps.append(step)

    def _new_group(self) -> tuple[NewGroup, Sequence[Call[Any]]]:
        if not self._steps:
            raise OptionError(f"flow {self.name!r} has no steps; add some with flow.add(...)")
        self._check_is_new()
        self._is_enqueued = True
        origin = self._engine._connection.origin
        tasks = tuple(step.to_new_task(origin) for step in self._steps)
        return NewGroup(name=self.name, tasks=tasks, is_flow=True), [step.call for step in self._steps]

    @must_await(sync="enqueue_sync")
    async def enqueue(self, *, conn: Any = None) -> FlowRun:
        """Store all steps or none. With `conn`, they are part of the caller's transaction. Raises KeyConflict if a live
        task holds the unique key of a step."""
        from synergon.flow_run import FlowRun

        new, calls = self._new_group()
        try:
            opened = await self._engine._enqueuer.open_flow(new, conn)
        except BaseException:
            self._is_enqueued = False
            raise
        return FlowRun.of(self._engine, self.name, opened, calls)

    def enqueue_sync(self, *, conn: Any = None) -> FlowRun:
        """`enqueue` for code without an event loop."""
        from synergon.flow_run import FlowRun

        new, calls = self._new_group()
        try:
            opened = self._engine._enqueuer.open_flow_sync(new, conn)
        except BaseException:
            self._is_enqueued = False
            raise
        return FlowRun.of(self._engine, self.name, opened, calls)

    _name_in_code = "flow"

    @property
    def logger(self) -> Any:
        """The logger of the engine."""
        return self._engine.logger


def _check_result_is_stored(step: Step[Any], source: Step[Any]) -> None:
    """Raise OptionError if the kind of `source`, whose result the step needs, does not store results."""
    task_type = source.call.task_type
    if task_type is not None and not task_type.policy.keep_result:
        raise OptionError(
            f"step {step.name} needs the result of step {source.name}, but task {task_type.kind!r} has "
            "keep_result=False, so its results are not stored; remove that option, or order the steps with after="
        )


def _check_reference(step: Step[Any], name: str, reference: ResultReference, *, is_item: bool) -> None:
    """Raise PayloadError if the JSON types of the result and of the argument cannot agree."""
    task_type, source = step.call.task_type, step_of(reference)
    _check_result_is_stored(step, source)
    if task_type is None:
        return
    wanted = task_type.signature.hint(name)
    if is_item and "list" not in json_types(wanted):
        raise PayloadError(
            f"argument {name!r} of step {step.name} is {describe(wanted)}, but a list with the result of step "
            f"{source.name} is given; pass the result itself, without the list around it"
        )
    types = item_types(wanted) if is_item else json_types(wanted)
    found = frozenset({"list"}) if reference.is_list else json_types(source.result_type)
    if found.isdisjoint(types) and types:
        raise PayloadError(
            f"argument {name!r} of step {step.name} is {describe(wanted)}, but the result of step {source.name} is "
            f"{'a list' if reference.is_list else describe(source.result_type)}: {with_article(text_of(found))} is no "
            f"{text_of(types)}"
        )


def _check_map(step: MapStep[Any]) -> None:
    """Raise PayloadError if the result of `over` can never be a list, if its items can never be the first argument of
    the kind, or if the kind requires more than one argument."""
    _check_result_is_stored(step, step.over)
    result_type = step.over.result_type
    if "list" not in json_types(result_type):
        raise PayloadError(f"flow.map needs a list, but the result of step {step.over.name} is {describe(result_type)}")
    task_type = step.call.task_type
    assert task_type is not None, "a map has a task function"
    first = task_type.signature.first_name
    others = [name for name in task_type.signature.names if name in task_type.signature.required and name != first]
    if others:
        raise PayloadError(
            f"flow.map gives task {task_type.kind!r} one argument, the item as {first!r}, but the task needs "
            f"{', '.join(others)}, too; give these a default, or make them fields of the items"
        )
    wanted = task_type.signature.hint(first)
    if item_types(result_type).isdisjoint(json_types(wanted)):
        raise PayloadError(
            f"the items of {describe(result_type)}, the result of step {step.over.name}, do not fit the first argument "
            f"of task {task_type.kind!r}, which is {describe(wanted)}"
        )
