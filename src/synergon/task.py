"""Task types: a registered function and its policy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, overload
from weakref import WeakValueDictionary

import msgspec

from synergon.call import DEFAULT_PLACEMENT, Enqueueable, check_kind
from synergon.context import Context
from synergon.errors import ConfigurationError, OptionError
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, with_execution
from synergon.options.acceptor import DEFAULT_HOLDS_SECONDS, DEFAULT_TIMEOUT_SECONDS, Acceptor, Decider
from synergon.options.argument_template import ArgumentTemplate
from synergon.options.durations import Duration
from synergon.options.idle_hook import WhenIdle, registrar
from synergon.options.key_template import KeyTemplate
from synergon.options.middleware_checks import Middleware, check_middleware
from synergon.options.options import KindPolicy, Placement, kind_policy
from synergon.options.payload import Signature
from synergon.options.requirement_options import NOTHING_GIVEN, requirements_text
from synergon.options.tenants import Tenant, TenantTemplate
from synergon.policies import ONCE
from synergon.providers.server import Server

if TYPE_CHECKING:
    from synergon.engine import Engine
    from synergon.providers.provider import Provider

Parameters = ParamSpec("Parameters")
Full = ParamSpec("Full")
Returned = TypeVar("Returned")
Value = TypeVar("Value")
Around = TypeVar("Around", bound=Middleware)
FailureHandler = TypeVar("FailureHandler", bound=Callable[..., Any])

REGISTERED: Final[WeakValueDictionary[tuple[str, str, str], AnyTask]] = WeakValueDictionary()
"""All task types of this process. The key is the module that registered the type, the function's name and the kind."""

INJECTED: Final[frozenset[type]] = frozenset({Context, Server})


class TaskType(Enqueueable[Parameters, Value], Generic[Full, Parameters, Returned, Value]):
    """A registered function and its policy. The function remains callable.

    For type checkers: the type is called with `Full` and returns `Returned`, like the function itself. It is enqueued
    with `Parameters`, which omits a leading Context, and its result is a `Value`.
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
        self.registered_in: str = registered_in or getattr(function, "__module__", "")
        """The module whose import registers the kind. A child process imports it."""
        self.kind: str = check_kind(options.get("name", getattr(function, "__name__", "")))
        self.is_coroutine: Final = inspect.iscoroutinefunction(function)
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(f"task {self.kind!r} is a generator; a task function returns once")
        self.policy: KindPolicy = kind_policy(
            options, f"@task of {self.kind!r}", is_coroutine=self.is_coroutine, default_retry=ONCE
        )
        self.provider = provider
        """The provider on whose servers tasks of this kind run. None if they need no server."""
        self.is_command = is_command
        if is_command and self.policy.batch is not None:
            raise OptionError(f"command {self.kind!r} cannot have batch=: a command is run for one server, and once")
        if is_command and self.policy.api:
            raise OptionError(f"command {self.kind!r} cannot have api=True: a command is for a server; send it in code")
        self.signature: Final = Signature(function, self.kind, INJECTED, is_batch=self.policy.batch is not None)
        self.encode_result: Callable[[Any], bytes | None]
        self.encode_result = self.signature.encode_result if self.policy.keep_result else _encode_nothing
        """Encodes the result of the task function as JSON. Returns None if results of this kind are not stored."""
        if provider is None and Server in self.signature.injected.values():
            raise ConfigurationError(
                f"task {self.kind!r} asks for a Server, which only tasks of a provider have; use @provider.task"
            )
        batch = self.policy.batch
        by, what = (self.policy.limit_by, "limit_by") if batch is None else (batch.by, "Batch by")
        self.key_template: Final = (
            KeyTemplate(by, self.signature.template_parameters, f"{what} of task {self.kind!r}")
            if self.policy.has_key_queues
            else None
        )
        self.unique_key: Final = (
            None
            if self.policy.key is None
            else KeyTemplate(self.policy.key, self.signature.template_parameters, f"key of task {self.kind!r}")
        )
        """Makes the unique keys of the kind's tasks. None if the kind makes none."""
        self._tenant_template = (
            None
            if self.policy.fair_by is None
            else TenantTemplate(self.policy.fair_by, self.policy.weight, self.signature.parameters, self.kind)
        )
        self.has_templates: Final = not (
            self.key_template is None and self.unique_key is None and self.policy.fair_by is None
        )
        """Whether keys or tenants are made of the arguments of the kind's tasks."""
        if self.policy.title is not None:
            self.title_template(self.policy.title)
        if "units" in options:
            self._check_units(f"@task of {self.kind!r}")
        self.limits: Final = self._limits()
        """The limits whose permits a task of this kind holds while it runs."""
        self.is_limited: Final = bool(self.limits) or provider is not None or self.key_template is not None
        """Whether limits or servers bound how many tasks of this kind may run."""
        self.uses_transaction = False
        """Whether the function has called ctx.transaction(), which a child process does not have."""
        self.requirements: Final = self.policy.requirements
        self.requirements_text: Final = KIND_DEFAULT if self.requirements == NO_REQUIREMENTS else self.requirements.text
        """The requirements as text, for the rows of tasks whose call does not override them."""
        self.is_threaded: Final = not self.is_coroutine and not is_command
        """Whether the function needs one of the threads for tasks, unless it runs in a child process."""
        self.weight: Final = with_execution(
            self.requirements, is_process=self.policy.runs_in == "process", is_threaded=self.is_threaded
        )
        """The requirements of tasks that have none of their own; they include the child process or the thread that the
        kind runs in."""
        self.acceptor: Acceptor | None = None
        """The `can_accept` function, which is called before a task is claimed. None if there is none."""
        self.final_failure: Callable[..., Any] | None = None
        """The `on_final_failure` function. None if there is none."""
        self.hooks: Final = self.policy.hooks if provider is None else (*provider.hooks, *self.policy.hooks)
        """The hooks. Those of the provider come first."""
        self._middlewares = list(self.policy.middleware)
        self.around: tuple[Middleware, ...] = ()
        """All middleware of the kind. The outermost comes first."""
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
        """The decorator that registers an idle hook: a function that is called when a node could start a task of this
        kind and none is ready. It may enqueue any number of tasks. With or without options: `every` (5 seconds) and
        `timeout`."""
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
        """Let a function decide which tasks of this kind a node takes. It gets a list of `Candidate` in claim order,
        and returns those that it accepts, or their ids. The others remain for other nodes. An answer holds for
        `holds_for`. If the function raises, or takes longer than `timeout`, the candidates are rejected."""
        if function is None:
            return partial(self.can_accept, holds_for=holds_for, timeout=timeout)
        if self.policy.batch is not None:
            raise OptionError(f"task {self.kind!r} has batch=, so can_accept cannot choose among its tasks; remove one")
        if self.acceptor is not None:
            raise ConfigurationError(f"task {self.kind!r} has two functions for can_accept; it takes one")
        if self.engine._node is not None:
            raise ConfigurationError(f"can_accept of {self.kind!r} must be there before a worker starts")
        self.acceptor = Acceptor(function, self.kind, holds_for=holds_for, timeout=timeout)
        return function

    def on_final_failure(self, function: FailureHandler) -> FailureHandler:
        """Call a function when an attempt on a live node ends a task of this kind `failed`. Plain or `async`, it takes
        `(task, seconds, error, transaction)`. What it writes with `transaction`, which is used like
        `ctx.transaction()`, is committed together with the end of the task. If it raises, nothing of that is stored,
        and the task ends with the error added to its own."""
        if not callable(function):
            raise ConfigurationError(f"on_final_failure of {self.kind!r} decorates a function, got {function!r}")
        if self.policy.batch is not None:
            raise OptionError(f"task {self.kind!r} has batch=, so it cannot have on_final_failure; use on_failure")
        if self.final_failure is not None:
            raise ConfigurationError(f"task {self.kind!r} has two functions for on_final_failure; it takes one")
        if self.engine._node is not None:
            raise ConfigurationError(f"on_final_failure of {self.kind!r} must be there before a worker starts")
        self.final_failure = function
        return function

    def middleware(self, function: Around) -> Around:
        """Add middleware around the task function of this kind: `async def around(ctx, call_next)`. Middleware of the
        engine, and earlier middleware of the kind, is outside it."""
        self._middlewares.append(check_middleware(function, f"middleware of {self.kind!r}"))
        self.wrap_again()
        return function

    def wrap_again(self) -> None:
        """Rebuild the chain of middleware after some was added."""
        self.around = (*self.engine._middlewares, *self._middlewares)

    def check_placement(self, placement: Placement) -> None:
        """Raise OptionError or ConfigurationError for options that this kind does not support."""
        self.requirements_for(placement)
        if self.policy.batch is not None:
            self._check_item_placement(placement)
        if placement.units is not None:
            self._check_units(f"with_options of {self.kind!r}")
        if placement.title is not None:
            self.title_template(placement.title)
        runs_in = placement.runs_in
        if runs_in == "process":
            self.check_importable()
        if runs_in == "loop" and not self.is_coroutine:
            raise OptionError(f"{self.kind!r} is a plain function and would block the loop")
        if runs_in == "thread" and self.is_coroutine:
            raise OptionError(f"{self.kind!r} is a coroutine, which runs in the loop or a process")
        if placement.weight is not None and self._tenant_template is None:
            raise OptionError(f"{self.kind!r} has no fair_by, so a call of it cannot have a weight; set fair_by first")

    def reject_templates_over(self, unknown: Container[str]) -> None:
        """Raise OptionError if a key or the tenant is made of an argument that is not known yet."""
        keys: list[KeyTemplate | TenantTemplate | None]
        keys = [self.key_template, self.unique_key, self._tenant_template]
        is_unknown_item = self.signature.list_name in unknown  # its fields are those of the templates
        for template in keys:
            for name in () if template is None else template.names:
                if template is not None and (is_unknown_item or name in unknown):
                    raise OptionError(
                        f"{template.what} uses {name!r}, the result of a step that is not known before the flow runs"
                    )

    def tenant_of(self, arguments: Mapping[str, Any], placement: Placement) -> Tenant | None:
        """The tenant of a task with these arguments and options. None if the kind has no `fair_by`."""
        return None if self._tenant_template is None else self._tenant_template.tenant(arguments, placement.weight)

    def _check_item_placement(self, placement: Placement) -> None:
        """Raise OptionError for options that concern a whole batch, and so cannot be given for one of its items."""
        given = {
            "queue": placement.queue,
            "timeout": placement.timeout,
            "units": placement.units,
            "runs_in": placement.runs_in,
            "cost, needs and forbids": None if placement.requirements == NOTHING_GIVEN else placement.requirements,
        }
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"with_options of {self.kind!r} cannot give {name}: the items of a batch run together; give it "
                    "to @task"
                )

    def _check_units(self, where: str) -> None:
        if not self.policy.limits and self.provider is None:
            raise OptionError(
                f"{where}: units count for the rates of limits, and the task names no limit and runs on no server; "
                'give limits=["..."], and declare it with engine.limit("...", rate=Rate(...))'
            )

    def title_template(self, title: str) -> ArgumentTemplate:
        """The template that makes titles from arguments. Raises OptionError if it names something that is no
        argument."""
        parameters: Mapping[str, inspect.Parameter] | None = self.signature.template_parameters
        if self.signature.list_name is None:
            parameters = {name: self.signature.parameters[name] for name in self.signature.names}
        return ArgumentTemplate(title, parameters, f"title of task {self.kind!r}")

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
        """The module and qualified name by which a child process imports the function."""
        return self.function.__module__, self.function.__qualname__

    def why_not_importable(self) -> str | None:
        """Why a child process cannot import the function. None if it can."""
        module, name = self.location
        if "<locals>" in name or "<lambda>" in name:
            return f"{name} is defined inside a function"
        if "__main__" in (module, self.registered_in):
            return f"{name} is defined in __main__"
        return None

    @property
    def is_isolable(self) -> bool:
        """Whether the function can run in a child process, if it must be isolated from other tasks."""
        return not self.uses_transaction and self.why_not_importable() is None

    def check_importable(self) -> None:
        """Raise ConfigurationError if a child process cannot import the function."""
        reason = self.why_not_importable()
        if reason is not None:
            raise ConfigurationError(
                f"task {self.kind!r} cannot run in a process: {reason}; define it at the top of a module "
                "that the worker imports"
            )


AnyTask = TaskType[..., ..., Any, Any]


def _encode_nothing(_result: Any) -> None:
    """Return None, which stores no result. Used by kinds with `keep_result=False`."""
