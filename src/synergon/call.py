"""Calls: a kind with bound arguments and options, and the methods that make calls and enqueue them."""

from __future__ import annotations

import logging
from asyncio import _get_running_loop
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from synergon.async_calls import AwaitedCall, coroutine_function, must_await, no_loop
from synergon.client.cooperative import made_in_chunks
from synergon.client.sync_bridge import IDLE_HOOK_GUARD
from synergon.errors import OptionError, PayloadError
from synergon.handle import Handle
from synergon.model.tasks import NewTask
from synergon.options.argument_template import ArgumentTemplate
from synergon.options.dependency_options import ReferenceFoundError, needs_of
from synergon.options.options import CallOptions, Placement, make_placement, one_line
from synergon.options.payload import References, encode_with_references
from synergon.options.requirement_options import requirements_text
from synergon.options.tenants import Tenant
from synergon.policies import DEFAULT_QUEUE

if TYPE_CHECKING:
    from synergon.task import TaskType

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")
Bound = TypeVar("Bound", covariant=True)

DEFAULT_PLACEMENT: Final = Placement()

METHODS_ELSEWHERE: Final = {
    "apply_async": "with_options(...).enqueue(...)",
    "send": "enqueue(...)",
    "send_with_options": "with_options(...).enqueue(...)",
    "schedule": "with_options(delay=...).enqueue(...)",
    "defer": "enqueue(...)",
    "defer_async": "enqueue(...)",
    "configure": "with_options(...)",
    "kiq": "enqueue(...)",
    "s": "call(...)",
    "si": "call(...)",
    "signature": "call(...)",
    "message": "call(...)",
}
"""Methods that tasks have in other task queues, and what to write instead."""


class Call(Generic[Bound]):
    """A kind with bound arguments and options, not stored yet."""

    __slots__ = ("key", "kind", "limit_key", "payload", "placement", "references", "task_type", "tenant", "url")

    def __init__(
        self,
        kind: str,
        payload: bytes,
        placement: Placement,
        task_type: TaskType[..., ..., Any, Bound] | None,
        limit_key: str | None = None,
        key: str | None = None,
        tenant: Tenant | None = None,
        references: References | None = None,
        url: str | None = None,
    ) -> None:
        self.kind: str = kind
        self.payload: Final = payload
        self.placement: Final = placement
        self.task_type: Final = task_type
        self.limit_key: str | None = limit_key
        """The key of the call's key queue. None if its kind has no key queues."""
        self.key: str | None = key
        """The unique key that the kind makes of the arguments. None if the kind makes none."""
        self.tenant: Final = tenant
        """The tenant of the task. None if the kind has no `fair_by`."""
        self.references: Final = references
        """The arguments that are results of steps of a flow. None if there are none."""
        self.url: Final = url if task_type is None else task_type.engine.settings.url
        """The URL of the database that the call is for. None if it is not known."""

    def __repr__(self) -> str:
        return f"<Call of {self.kind} {self.payload.decode()}>"

    def with_options(self, **options: Unpack[CallOptions]) -> Call[Bound]:
        """A copy of the call with these options. They replace all options that the call had."""
        placement = make_placement(options, f"with_options of {self.kind!r}", has_key=self.key is not None)
        tenant = None
        if self.task_type is not None:
            self.task_type.check_placement(placement)
            if self.tenant is not None:
                tenant = self.task_type.tenant_of(self._known_arguments(), placement)
        elif placement.weight is not None:
            raise OptionError(
                f"with_options of {self.kind!r}: the tenant of the task is not known here, so it cannot have a weight; "
                "import the task, or leave the weight to its kind"
            )
        return Call(
            self.kind,
            self.payload,
            placement,
            self.task_type,
            self.limit_key,
            self.key,
            tenant,
            self.references,
            self.url,
        )

    def _known_arguments(self) -> dict[str, Any]:
        """The arguments, without those that are results of steps."""
        assert self.task_type is not None
        signature = self.task_type.signature
        return signature.decode(self.payload) if self.references is None else signature.plain(self.payload)

    def to_new_task(self, origin: str | None = None) -> NewTask:
        """Make the record for the store. Options that the call does not give are those of the kind. `origin` is the
        engine that is notified of the task's end. Raises PayloadError if an argument is the result of a step."""
        if self.references is not None:
            raise PayloadError(
                f"an argument of task {self.kind!r} is the result of a step, which only tasks of that flow can have; "
                "add the call to the flow with flow.add(...)"
            )
        return self.without_references(origin)

    def without_references(self, origin: str | None = None, *, has_title: bool = True) -> NewTask:
        """Make the record for the store, also for a step of a flow. The payload lacks the arguments that are results of
        other steps; in a list, such an item is null. `has_title=False` leaves the title out: a map does not know the
        arguments of its items yet."""
        placement, task_type = self.placement, self.task_type
        policy = task_type.policy if task_type is not None else None
        if (
            placement is DEFAULT_PLACEMENT and has_title and task_type is not None and policy is not None
        ):  # the usual case
            return NewTask(
                kind=self.kind,
                queue=policy.queue,
                payload=self.payload,
                priority=policy.priority,
                units=policy.units,
                max_attempts=policy.retry.attempts,
                origin=origin,
                limit_key=self.limit_key,
                fair_key=None if self.tenant is None else self.tenant.name,
                fair_step=0 if self.tenant is None else self.tenant.step,
                key=self.key,
                on_conflict=policy.on_conflict,
                unique_for=policy.unique_for,
                requirements=task_type.requirements_text,
                title=None if policy.title is None else self._title(policy.title),
                keep_for=policy.keep_for,
            )
        attempts = placement.max_attempts or (policy.retry.attempts if policy else None)
        queue = placement.queue or (policy.queue if policy else DEFAULT_QUEUE)
        priority = placement.priority if placement.priority is not None else (policy.priority if policy else 0)
        title = placement.title or (policy.title if policy else None)
        on_conflict = placement.on_conflict or (policy.on_conflict if policy else "return")
        if placement.after and on_conflict == "replace":
            raise OptionError(
                f"a call of {self.kind!r} has after and on_conflict='replace'; a task that replaces another one could "
                "come to wait for itself, so use another on_conflict"
            )
        return NewTask(
            kind=self.kind,
            queue=queue,
            payload=self.payload,
            priority=priority,
            units=placement.units or (policy.units if policy else 1),
            run_at=placement.run_at,
            delay=placement.delay,
            expires_in=placement.expires_in,
            max_attempts=attempts,
            overrides=placement.overrides,
            key=placement.key or self.key,
            on_conflict=on_conflict,
            unique_for=placement.unique_for or (policy.unique_for if policy else None),
            tags=placement.tags,
            meta=placement.meta,
            origin=origin,
            limit_key=self.limit_key,
            fair_key=None if self.tenant is None else self.tenant.name,
            fair_step=0 if self.tenant is None else self.tenant.step,
            requirements=self._requirements(),
            title=None if title is None or not has_title else self._title(title),
            after=needs_of(placement.after, self.url),
            if_dependency_fails=placement.if_dependency_fails,
            keep_for=policy.keep_for if policy else None,
        )

    def _title(self, title: str) -> str | None:
        if self.task_type is not None:
            template = self.task_type.title_template(title)
            self._reject_unknown(template.names, f"title of task {self.kind!r}")
            return one_line(template.fill(self.task_type.signature.template_values(self._known_arguments())))
        template = ArgumentTemplate(title, None, f"title of task {self.kind!r}")
        return one_line(template.fill(msgspec.json.decode(self.payload)))

    def _reject_unknown(self, names: Iterable[str], what: str) -> None:
        """Raise OptionError if a template uses an argument that is the result of a step. `names` are the arguments that
        it uses."""
        unknown = self.references or {}
        is_unknown_item = self.task_type is not None and self.task_type.signature.list_name in unknown
        for name in names:
            if is_unknown_item or name in unknown:
                raise OptionError(f"{what} uses {name!r}, the result of a step that is not known before the flow runs")

    def _requirements(self) -> str:
        where = f"with_options of {self.kind!r}"
        if self.task_type is None:  # the timeout of the kind is not known here either
            is_long = self.placement.timeout is not None
            is_process = self.placement.is_process
            return requirements_text(
                self.placement.requirements, None, is_long=is_long, is_process=is_process, where=where
            )
        return self.task_type.requirements_for(self.placement)


class Enqueueable(Generic[Parameters, Value]):
    """The common base of task types with and without options. Its methods take the arguments of the task function."""

    _task_type: TaskType[..., Parameters, Any, Value]
    _placement: Placement

    @property
    def _name_in_code(self) -> str:
        """The name in the user's code, for messages."""
        return self._task_type.function.__name__

    @property
    def logger(self) -> logging.Logger:
        """The logger of the engine."""
        return self._task_type.engine.logger

    def call(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Call[Value]:
        """Bind and check the arguments. Raises PayloadError if they do not match the signature."""
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Value]:
        task_type = self._task_type
        try:
            payload, arguments = task_type.signature.bind(args, kwargs)
        except ReferenceFoundError:
            return self._call_with_references(args, kwargs)
        if not task_type.has_templates:
            return Call(task_type.kind, payload, self._placement, task_type)
        given = task_type.signature.template_values(task_type.signature.as_dict(arguments))
        limit_key = None if task_type.key_template is None else task_type.key_template.key(given)
        key = None if task_type.unique_key is None else task_type.unique_key.key(given)
        tenant = task_type.tenant_of(given, self._placement)
        return Call(task_type.kind, payload, self._placement, task_type, limit_key, key, tenant)

    def call_without_arguments(self) -> Call[Value]:
        """Make the call of a map, whose arguments are not known yet."""
        return Call(self._task_type.kind, b"{}", self._placement, self._task_type)

    def call_of_item(self, item: Any) -> Call[Value]:
        """Make the call for one item of a map. The item is its first argument."""
        return self._call((), {self._task_type.signature.first_name: item})

    def _call_with_references(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Value]:
        task_type = self._task_type
        payload, known, references = task_type.signature.bind_with_references(args, kwargs)
        task_type.reject_templates_over(references)
        limit_key = None if task_type.key_template is None else task_type.key_template.key(known)
        key = None if task_type.unique_key is None else task_type.unique_key.key(known)
        tenant = task_type.tenant_of(known, self._placement)
        return Call(task_type.kind, payload, self._placement, task_type, limit_key, key, tenant, references)

    @coroutine_function
    def enqueue(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Coroutine[Any, Any, Handle[Value]]:
        """Store the call as a task. Returns when it is durable."""
        # Like @must_await, but arguments are passed once: this is called most often.
        if _get_running_loop() is None:
            raise no_loop(self, "enqueue", "enqueue_sync")
        return AwaitedCall(self._enqueue(args, kwargs), self, "enqueue")

    @must_await(sync="enqueue_sync")
    async def delay(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Handle[Value]:
        """`enqueue`, under the name that other task queues use. (The option for a delay is also called `delay`.)"""
        return await self._enqueue(args, kwargs)

    async def _enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Value]:
        if (guard := IDLE_HOOK_GUARD.get()) is not None:  # first, because an idle hook may make very many calls
            await guard.check_after_other_tasks()
        task_type = self._task_type
        inserted = await task_type.engine._enqueuer.enqueue_one(self._call(args, kwargs))
        return Handle.of(task_type.engine, inserted, task_type)

    @must_await(sync="enqueue_many_sync")
    async def enqueue_many(self, arguments: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Handle[Value]]:
        """Store one task per entry, all or none. An entry is a tuple of positional arguments, or a dict of named
        ones."""
        calls = await made_in_chunks(self._bind_entry, _listed(arguments))
        return await self._task_type.engine.enqueue(calls)

    def enqueue_sync(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Handle[Value]:
        """`enqueue` for code without an event loop."""
        (handle,) = self._task_type.engine.enqueue_sync([self.call(*args, **kwargs)])
        return handle

    def enqueue_many_sync(self, arguments: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Handle[Value]]:
        """`enqueue_many` for code without an event loop."""
        calls = [self._bind_entry(entry) for entry in _listed(arguments)]
        return self._task_type.engine.enqueue_sync(calls)

    def with_options(self, **options: Unpack[CallOptions]) -> Configured[Parameters, Value]:
        """This task type with these options. They apply to calls that are made through the returned object."""
        has_key = self._task_type.unique_key is not None
        where = f"with_options of {self._task_type.kind!r}"
        return Configured(self._task_type, make_placement(options, where, has_key=has_key))

    if not TYPE_CHECKING:  # a type checker finds these mistakes itself

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError. If `name` is a method of another task queue, the message says what to write
            instead."""
            advice = METHODS_ELSEWHERE.get(name)
            if advice is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"a task has no {name!r}; write {self._name_in_code}.{advice}")

    def _bind_entry(self, entry: tuple[Any, ...] | Mapping[str, Any]) -> Call[Value]:
        if isinstance(entry, tuple):
            return self._call(entry, {})
        if isinstance(entry, Mapping):
            return self._call((), dict(entry))
        raise PayloadError(
            f"enqueue_many takes tuples or dicts of arguments, got {entry!r}; for one argument: (value,)"
        )


class Configured(Enqueueable[Parameters, Value]):
    """A task type with options for its calls."""

    def __init__(self, task_type: TaskType[..., Parameters, Any, Value], placement: Placement) -> None:
        self._task_type = task_type
        self._placement = placement
        task_type.check_placement(placement)

    @property
    def _name_in_code(self) -> str:
        """The expression for this object in the user's code, for messages."""
        return f"{self._task_type._name_in_code}.with_options(...)"


def _listed(arguments: Iterable[Value]) -> list[Value]:
    if not isinstance(arguments, Iterable):
        raise PayloadError(f"enqueue_many takes a list of tuples or dicts of arguments, got {arguments!r}")
    return list(arguments)


def check_kind(name: Any) -> str:
    """Return the name of a kind if it is made of letters, digits and `_.:-`, which tables, URLs and shells show as they
    are. Raises OptionError otherwise."""
    if not isinstance(name, str) or not name or len(name) > 200 or not all(c.isalnum() or c in "_.:-" for c in name):
        raise OptionError(f"a kind's name is made of letters, digits and _ . : -, got {name!r}; give name=...")
    return name


def call_by_name(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], url: str | None = None) -> Call[Any]:
    """Make a call of a kind whose function is not registered here. Its arguments are checked where it runs."""
    if args:
        raise PayloadError(
            f"the function of kind {kind!r} is not known here, so name its arguments: {kind}(name=value)"
        )
    payload, references = encode_with_references(kwargs, f"the payload of task {kind!r}")
    return Call(check_kind(kind), payload, DEFAULT_PLACEMENT, None, references=references or None, url=url)
