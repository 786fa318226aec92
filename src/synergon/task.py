"""Task types and calls: a registered function, and the function with bound arguments and options."""

from __future__ import annotations

import functools
import inspect
import logging
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack, cast, overload
from weakref import WeakValueDictionary

import msgspec

from synergon.client.cooperative import made_in_chunks
from synergon.client.must_await import AwaitedCall, coroutine_function, must_await, no_loop
from synergon.client.sync_bridge import IDLE_HOOK_GUARD
from synergon.context import Context
from synergon.errors import ConfigurationError, OptionError, PayloadError
from synergon.handle import Handle
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, with_process
from synergon.model.tasks import NewTask
from synergon.options.acceptor import DEFAULT_HOLDS_SECONDS, DEFAULT_TIMEOUT_SECONDS, Acceptor, Decider
from synergon.options.argument_template import ArgumentTemplate
from synergon.options.durations import Duration
from synergon.options.idle_hook import WhenIdle, registrar
from synergon.options.key_template import KeyTemplate
from synergon.options.middleware_checks import Middleware, check_middleware
from synergon.options.options import CallOptions, KindPolicy, Placement, kind_policy, make_placement, one_line
from synergon.options.payload import Signature, encode
from synergon.options.requirement_options import requirements_text
from synergon.policies import DEFAULT_QUEUE, ONCE
from synergon.providers.server import Server

if TYPE_CHECKING:
    from synergon.engine import Engine
    from synergon.providers.provider import Provider

Parameters = ParamSpec("Parameters")
Full = ParamSpec("Full")
Returned = TypeVar("Returned")
Value = TypeVar("Value")
Around = TypeVar("Around", bound=Middleware)

REGISTERED: Final[WeakValueDictionary[tuple[str, str, str], AnyTask]] = WeakValueDictionary()
"""All task types of this process, by the module that registered them, the function's name and the kind."""

INJECTED: Final[frozenset[type]] = frozenset({Context, Server})
DEFAULT_PLACEMENT: Final = Placement()


class Call(Generic[Value]):
    """A kind with bound arguments and options, not stored yet."""

    __slots__ = ("kind", "limit_key", "payload", "placement", "task_type")

    def __init__(
        self,
        kind: str,
        payload: bytes,
        placement: Placement,
        task_type: TaskType[..., ..., Any, Value] | None,
        limit_key: str | None = None,
    ) -> None:
        self.kind = kind
        self.payload = payload
        self.placement = placement
        self.task_type = task_type
        self.limit_key = limit_key
        """The key of its key queue, if its kind has key queues."""

    def __repr__(self) -> str:
        return f"<Call of {self.kind} {self.payload.decode()}>"

    def with_options(self, **options: Unpack[CallOptions]) -> Call[Value]:
        """A copy of the call with these options, which replace all that it had."""
        placement = make_placement(options, f"with_options of {self.kind!r}")
        if self.task_type is not None:
            self.task_type.check_placement(placement)
        return Call(self.kind, self.payload, placement, self.task_type, self.limit_key)

    def to_new_task(self, origin: str | None = None) -> NewTask:
        """The record for the store, with the options of the call completed by those of the kind. `origin` is notified
        of the end."""
        placement, task_type = self.placement, self.task_type
        policy = task_type.policy if task_type is not None else None
        if placement is DEFAULT_PLACEMENT and task_type is not None and policy is not None:  # the usual case
            return NewTask(
                kind=self.kind,
                queue=policy.queue,
                payload=self.payload,
                priority=policy.priority,
                max_attempts=policy.retry.attempts,
                origin=origin,
                limit_key=self.limit_key,
                requirements=task_type.requirements_text,
                title=None if policy.title is None else self._title(policy.title),
            )
        attempts = placement.max_attempts or (policy.retry.attempts if policy else None)
        queue = placement.queue or (policy.queue if policy else DEFAULT_QUEUE)
        priority = placement.priority if placement.priority is not None else (policy.priority if policy else 0)
        title = placement.title or (policy.title if policy else None)
        return NewTask(
            kind=self.kind,
            queue=queue,
            payload=self.payload,
            priority=priority,
            run_at=placement.run_at,
            delay=placement.delay,
            expires_in=placement.expires_in,
            max_attempts=attempts,
            overrides=placement.overrides,
            key=placement.key,
            on_conflict=placement.on_conflict,
            tags=placement.tags,
            meta=placement.meta,
            origin=origin,
            limit_key=self.limit_key,
            requirements=self._requirements(),
            title=None if title is None else self._title(title),
        )

    def _title(self, title: str) -> str | None:
        if self.task_type is not None:
            template = self.task_type.title_template(title)
            return one_line(template.fill(self.task_type.signature.decode(self.payload)))
        template = ArgumentTemplate(title, None, f"title of task {self.kind!r}")
        return one_line(template.fill(msgspec.json.decode(self.payload)))

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
    """The common base of task types with and without options. Takes the arguments of the function itself."""

    _task_type: TaskType[..., Parameters, Any, Value]
    _placement: Placement

    @property
    def name_in_code(self) -> str:
        """The name in the user's code, for messages."""
        return self._task_type.function.__name__

    @property
    def logger(self) -> logging.Logger:
        """The logger of the engine."""
        return self._task_type.engine.logger

    def call(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Call[Value]:
        """Bind and check the arguments. PayloadError if they do not match."""
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Value]:
        task_type = self._task_type
        payload, arguments = task_type.signature.bind(args, kwargs)
        if task_type.key_template is None:
            return Call(task_type.kind, payload, self._placement, task_type)
        limit_key = task_type.key_template.key(task_type.signature.as_dict(arguments))
        return Call(task_type.kind, payload, self._placement, task_type, limit_key)

    @coroutine_function
    def enqueue(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Coroutine[Any, Any, Handle[Value]]:
        """Store the call. Returns when it is durable."""
        # Like @must_await, but arguments are passed once: this is called most often.
        if _get_running_loop() is None:
            raise no_loop(self, "enqueue", "enqueue_sync")
        return AwaitedCall(self._enqueue(args, kwargs), self, "enqueue")

    @must_await(sync="enqueue_sync")
    async def delay(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Handle[Value]:
        """`enqueue` under the name that other task queues use. (The option for a delay is `delay`, too.)"""
        return await self._enqueue(args, kwargs)

    async def _enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Value]:
        if (guard := IDLE_HOOK_GUARD.get()) is not None:  # first, because an idle hook may make very many calls
            await guard.check_after_other_tasks()
        task_type = self._task_type
        inserted = await task_type.engine.enqueuer.enqueue_one(self._call(args, kwargs))
        return Handle.of(task_type.engine, inserted, task_type)

    @must_await(sync="enqueue_many_sync")
    async def enqueue_many(self, arguments: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Handle[Value]]:
        """Store one task per entry, all or none: a tuple of positional arguments, or a dict of named ones."""
        calls = await made_in_chunks(self._bind_entry, list(arguments))
        return cast("list[Handle[Value]]", await self._task_type.engine.enqueue(calls))

    def enqueue_sync(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Handle[Value]:
        """`enqueue` for code without an event loop."""
        (handle,) = self._task_type.engine.enqueue_sync([self.call(*args, **kwargs)])
        return cast("Handle[Value]", handle)

    def enqueue_many_sync(self, arguments: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Handle[Value]]:
        """`enqueue_many` for code without an event loop."""
        calls = [self._bind_entry(entry) for entry in arguments]
        return cast("list[Handle[Value]]", self._task_type.engine.enqueue_sync(calls))

    def with_options(self, **options: Unpack[CallOptions]) -> Configured[Parameters, Value]:
        """This task type with other options, for calls that are made through the returned object."""
        return Configured(self._task_type, make_placement(options, f"with_options of {self._task_type.kind!r}"))

    def _bind_entry(self, entry: tuple[Any, ...] | Mapping[str, Any]) -> Call[Value]:
        if isinstance(entry, Mapping):
            return self._call((), dict(entry))
        if isinstance(entry, tuple):
            return self._call(entry, {})
        raise PayloadError(
            f"enqueue_many takes tuples or dicts of arguments, got {entry!r}; for one argument: (value,)"
        )


class Configured(Enqueueable[Parameters, Value]):
    """A task type with options of its own."""

    def __init__(self, task_type: TaskType[..., Parameters, Any, Value], placement: Placement) -> None:
        self._task_type = task_type
        self._placement = placement
        task_type.check_placement(placement)

    @property
    def name_in_code(self) -> str:
        """The name in the user's code, for messages."""
        return f"{self._task_type.name_in_code}.with_options(...)"


class TaskType(Enqueueable[Parameters, Value], Generic[Full, Parameters, Returned, Value]):
    """A registered function and its policy. It remains a plain callable.

    For type checkers: it is called with `Full` and returns `Returned`, like the function itself; it is enqueued with
    `Parameters`, which omits a leading Context, and its result is a `Value`.
    """

    __name__: str

    def __init__(
        self,
        engine: Engine,
        function: Callable[Full, Returned],
        options: Mapping[str, Any],
        registered_in: str = "",
        *,
        provider: Provider | None = None,
        is_command: bool = False,
    ) -> None:
        if not callable(function) or inspect.isclass(function):
            raise ConfigurationError(f"@engine.task decorates functions, got {function!r}")
        self.engine = engine
        self.function = function
        self.registered_in = registered_in or getattr(function, "__module__", "")
        """The module whose import registers the kind; a child process imports it."""
        self.kind: str = check_kind(options.get("name", getattr(function, "__name__", "")))
        self.is_coroutine = inspect.iscoroutinefunction(function)
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(f"task {self.kind!r} is a generator; a task function returns once")
        self.policy: KindPolicy = kind_policy(
            options, f"@task of {self.kind!r}", is_coroutine=self.is_coroutine, default_retry=ONCE
        )
        self.provider = provider
        """The provider on whose servers it runs."""
        self.is_command = is_command
        self.signature = Signature(function, self.kind, INJECTED)
        if provider is None and Server in self.signature.injected.values():
            raise ConfigurationError(
                f"task {self.kind!r} asks for a Server, which only tasks of a provider have; use @provider.task"
            )
        self.key_template = (
            KeyTemplate(self.policy.limit_by, self.signature.parameters, self.kind)
            if self.policy.has_key_queues
            else None
        )
        if self.policy.title is not None:
            self.title_template(self.policy.title)
        self.limits = self._limits()
        """The limits whose permits a task of this kind holds while it runs."""
        self.is_limited = bool(self.limits) or provider is not None or self.key_template is not None
        """Whether limits or servers bound how many tasks of this kind may run."""
        self.requirements = self.policy.requirements
        self.requirements_text = KIND_DEFAULT if self.requirements == NO_REQUIREMENTS else self.requirements.text
        """The text of the requirements in the rows of its tasks, unless a call overrides them."""
        self.weight = with_process(self.requirements, is_process=self.policy.runs_in == "process")
        """The requirements of such a task, including a child process."""
        self.acceptor: Acceptor | None = None
        """The `can_accept` function, which is asked before a task is claimed."""
        self.hooks = self.policy.hooks if provider is None else (*provider.hooks, *self.policy.hooks)
        """The hooks, those of the provider first."""
        self._middlewares = list(self.policy.middleware)
        self.around: tuple[Middleware, ...] = ()
        """The middleware, the outermost first."""
        self.wrap_again()
        if self.policy.runs_in == "process":
            self.check_importable()
        self._task_type = self
        self._placement = DEFAULT_PLACEMENT
        functools.update_wrapper(self, function)
        REGISTERED[self.registered_in, self.function.__qualname__, self.kind] = self

    def __repr__(self) -> str:
        return f"<TaskType {self.kind}>"

    def _limits(self) -> tuple[str, ...]:
        own = () if self.policy.max_running_global is msgspec.UNSET else (f"kind:{self.kind}",)
        return (*own, *self.policy.limits)

    def __call__(self, *args: Full.args, **kwargs: Full.kwargs) -> Returned:
        """Call the function directly, as if it had not been decorated."""
        return self.function(*args, **kwargs)

    @property
    def when_idle(self) -> WhenIdle:
        """Call a function when a node could start tasks of this kind and none is ready; it may enqueue any number of
        them. With or without options: `every` (5 seconds) and `timeout`."""
        return registrar(self.engine, self.kind)

    @overload
    def can_accept(self, function: Decider, /) -> Decider: ...
    @overload
    def can_accept(self, /, *, holds_for: Duration = ..., timeout: Duration = ...) -> Callable[[Decider], Decider]: ...

    def can_accept(
        self,
        function: Any = None,
        /,
        *,
        holds_for: Duration = DEFAULT_HOLDS_SECONDS,
        timeout: Duration = DEFAULT_TIMEOUT_SECONDS,
    ) -> Any:
        """Let a function decide which tasks of this kind a node takes. It gets a list of `Candidate`, in claim order,
        and returns those that it accepts, or their ids; the others remain for other nodes. An answer holds for
        `holds_for`; a function that raises, or takes longer than `timeout`, has rejected them."""
        if function is None:
            return partial(self.can_accept, holds_for=holds_for, timeout=timeout)
        if self.acceptor is not None:
            raise ConfigurationError(f"task {self.kind!r} has two functions for can_accept; it takes one")
        if self.engine.node is not None:
            raise ConfigurationError(f"can_accept of {self.kind!r} must be there before a worker starts")
        self.acceptor = Acceptor(function, self.kind, holds_for=holds_for, timeout=timeout)
        return function

    def middleware(self, function: Around) -> Around:
        """Add a function around the task function of this kind: `async def around(ctx, call_next)`. Middleware of the
        engine, and earlier middleware of the kind, is outside of it."""
        self._middlewares.append(check_middleware(function, f"middleware of {self.kind!r}"))
        self.wrap_again()
        return function

    def wrap_again(self) -> None:
        """Rebuild the chain after middleware was added."""
        self.around = (*self.engine.middlewares, *self._middlewares)

    def check_placement(self, placement: Placement) -> None:
        """Raise for options that this kind does not support."""
        self.requirements_for(placement)
        if placement.title is not None:
            self.title_template(placement.title)
        runs_in = placement.runs_in
        if runs_in == "process":
            self.check_importable()
        if runs_in == "loop" and not self.is_coroutine:
            raise OptionError(f"{self.kind!r} is a plain function and would block the loop")
        if runs_in == "thread" and self.is_coroutine:
            raise OptionError(f"{self.kind!r} is a coroutine, which runs in the loop or a process")

    def title_template(self, title: str) -> ArgumentTemplate:
        """What makes titles of arguments; OptionError if the template names what is no argument."""
        arguments = {name: self.signature.parameters[name] for name in self.signature.names}
        return ArgumentTemplate(title, arguments, f"title of task {self.kind!r}")

    def requirements_for(self, placement: Placement) -> str:
        """The text of the requirements for a call with these options."""
        is_long = self.policy.is_exceeded_by(placement.timeout)
        where = f"with_options of {self.kind!r}"
        is_process = placement.is_process
        if not is_process and self.policy.runs_in != "process":
            is_process = None  # so it stands beside those that do not say it
        return requirements_text(
            placement.requirements, self.requirements, is_long=is_long, is_process=is_process, where=where
        )

    @property
    def location(self) -> tuple[str, str]:
        """Module and qualified name, by which a child process imports the function."""
        return self.function.__module__, self.function.__qualname__

    def why_not_importable(self) -> str | None:
        """Why a child process cannot import the function; None if it can."""
        module, name = self.location
        if "<locals>" in name or "<lambda>" in name:
            return f"{name} is defined inside a function"
        if "__main__" in (module, self.registered_in):
            return f"{name} is defined in __main__"
        return None

    def check_importable(self) -> None:
        """Raise for a function that a child process cannot import."""
        reason = self.why_not_importable()
        if reason is not None:
            raise ConfigurationError(
                f"task {self.kind!r} cannot run in a process: {reason}; define it at the top of a module "
                "that the worker imports"
            )


AnyTask = TaskType[..., ..., Any, Any]


def check_kind(name: Any) -> str:
    """Check the name of a kind: a word that is readable in a table, a URL and a shell."""
    if not isinstance(name, str) or not name or len(name) > 200 or not all(c.isalnum() or c in "_.:-" for c in name):
        raise OptionError(f"a kind's name is made of letters, digits and _ . : -, got {name!r}; give name=...")
    return name


def call_by_name(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
    """A call of a kind whose function is not registered here; its arguments are checked where it runs."""
    if args:
        raise PayloadError(
            f"the function of kind {kind!r} is not known here, so name its arguments: {kind}(name=value)"
        )
    payload = encode(kwargs, f"the payload of task {kind!r}")
    return Call(check_kind(kind), payload, DEFAULT_PLACEMENT, None)
