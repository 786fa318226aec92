"""The options of kinds and calls: their names and their checks. Unknown options raise OptionError.

Long, because every option has its check and its error message here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict, get_args

import msgspec

from synergon.errors import OptionError
from synergon.model.record import MOMENTS, from_datetime
from synergon.model.requirements import NO_REQUIREMENTS, Requirements
from synergon.model.tasks import OnConflict
from synergon.options.addresses import normal_prefix
from synergon.options.argument_template import ArgumentTemplate
from synergon.options.dependency_options import After, IfDependencyFails, TaskReference, check_after
from synergon.options.durations import Duration, microseconds, seconds
from synergon.options.middleware_checks import Middleware, check_middlewares
from synergon.options.overrides import NO_TIMEOUT, Overrides, RunsIn
from synergon.options.payload import encode
from synergon.options.requirement_options import (
    NOTHING_GIVEN,
    GivenRequirements,
    given_requirements,
    requirements_of_kind,
)
from synergon.options.tenants import Weight, check_weight, fair_options
from synergon.options.urgency import check_flag, urgency_options
from synergon.policies import (
    DEFAULT_QUEUE,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MOST_AT_ONCE,
    Batch,
    Rate,
    Resources,
    Retry,
)

NAME_LENGTH: Final = 200
TITLE_LENGTH: Final = 200
RESERVED: Final = ("kind:", "key:")
"""The prefixes of limits that belong to one kind."""
HOOKS: Final = ("on_start", "on_success", "on_failure", "on_complete")


NAMES_ELSEWHERE: Final = {
    "acks_late": "a task is always kept until it has ended",
    "autoretry_for": "write retry=Retry(attempts=5, on=(ConnectionError,))",
    "bind": "give the function a parameter `ctx: Context` instead",
    "countdown": "write delay=...",
    "default_retry_delay": "write retry=Retry(first=...)",
    "eta": "write run_at=...",
    "expires": "write expires_in=...",
    "ignore_result": "write keep_result=False",
    "max_retries": "write retry=..., the number of attempts in all, or a Retry",
    "rate_limit": "write rate=Rate(...)",
    "result_ttl": "write keep=...",
    "soft_time_limit": "write timeout=...",
    "throws": "write retry=Retry(attempts=5, never=(ValueError,))",
    "time_limit": "write timeout=...",
}
"""The names of options in other task queues, with what to write here."""


class KindOptions(TypedDict, total=False):
    """The options of a kind that do not depend on where its function runs."""

    title: str
    queue: str
    priority: int
    timeout: Duration | None
    retry: Retry | int
    max_running: int
    max_running_global: int | None
    limits: Iterable[str]
    limit_by: Callable[..., str | int] | str
    limit: int | None
    rate: Rate
    units: int
    fair_by: Callable[..., str | int] | str
    weight: Weight
    cost: Resources
    needs: Iterable[str]
    forbids: Iterable[str]
    downstream_of: Iterable[str]
    key: Callable[..., str | int] | str
    on_conflict: OnConflict
    unique_for: Duration
    keep: Duration
    keep_result: bool
    api: bool
    redact: bool | Iterable[str]
    urgent: bool
    preemptible: bool
    uninterruptible: bool
    on_start: Callable[..., Any]
    on_success: Callable[..., Any]
    on_failure: Callable[..., Any]
    on_complete: Callable[..., Any]
    middleware: Iterable[Middleware]


class TaskOptions(KindOptions, total=False):
    """The options of `@engine.task(...)`, except `batch`: with it, a function has another signature for its callers."""

    name: str
    runs_in: RunsIn


class CallOptions(TypedDict, total=False):
    """The options of `with_options(...)`. None means that the option is not given, except for `timeout`, where it means
    no timeout."""

    title: str | None
    queue: str | None
    priority: int | None
    units: int | None
    timeout: Duration | None
    retry: Retry | int | None
    runs_in: RunsIn | None
    delay: Duration | None
    run_at: datetime | None
    key: str | None
    on_conflict: OnConflict | None
    unique_for: Duration | None
    expires_in: Duration | None
    tags: Iterable[str] | None
    meta: Mapping[str, Any] | None
    cost: Resources | None
    needs: Iterable[str] | None
    forbids: Iterable[str] | None
    after: Iterable[TaskReference | int] | None
    if_dependency_fails: IfDependencyFails | None
    weight: float | None
    conn: Any


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a call, checked and converted to the units of the store."""

    title: str | None = None
    """A template over the arguments of the call."""
    queue: str | None = None
    priority: int | None = None
    units: int | None = None
    delay: int | None = None
    run_at: int | None = None
    expires_in: int | None = None
    key: str | None = None
    on_conflict: OnConflict | None = None
    """None means as its kind says."""
    unique_for: int | None = None
    """None means as its kind says."""
    tags: tuple[str, ...] = ()
    meta: bytes | None = None
    max_attempts: int | None = None
    overrides: bytes | None = None
    timeout: float | None = None
    """The timeout in seconds; NO_TIMEOUT means none. None if the call does not override it."""
    requirements: GivenRequirements = NOTHING_GIVEN
    """The requirements that the call gives."""
    runs_in: RunsIn | None = None
    after: After = ()
    if_dependency_fails: IfDependencyFails = "cancel"
    weight: float | None = None
    """The weight of the task's tenant. None means as its kind says."""
    conn: Any = None

    @property
    def is_process(self) -> bool | None:
        """Whether the task function runs in a child process. None if the call does not override that."""
        return None if self.runs_in is None else self.runs_in == "process"


def reject_unknown(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise OptionError for the first given option that is not known. `where` names what takes the options."""
    names = set(known)
    for name in given:
        if name in names:
            continue
        if name in NAMES_ELSEWHERE:
            raise OptionError(f"{where} has no option {name!r}; {NAMES_ELSEWHERE[name]}")
        import difflib

        # Short words are similar by chance: `cron` is not a misspelt `conn`.
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.6 if len(name) > 4 else 0.8)
        advice = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(sorted(names))}"
        raise OptionError(f"{where} has no option {name!r}; {advice}")


def make_placement(options: Mapping[str, Any], where: str, *, has_key: bool = False) -> Placement:
    """Check the options of a call. `has_key`: the kind of the call makes unique keys."""
    reject_unknown(options, CallOptions.__annotations__, where)
    options = {name: value for name, value in options.items() if value is not None or name == "timeout"}
    values: dict[str, Any] = {}
    if "title" in options:
        values["title"] = check_title(options["title"])
    for name in ("queue", "key"):
        if name in options:
            values[name] = check_name(options[name], name)
    if "priority" in options:
        values["priority"] = check_priority(options["priority"])
    if "units" in options:
        values["units"] = check_units(options["units"])
    if "delay" in options and "run_at" in options:
        raise OptionError(f"{where}: give delay or run_at, not both")
    if "delay" in options:
        values["delay"] = microseconds(seconds(options["delay"], "delay"))
    if "run_at" in options:
        values["run_at"] = check_moment(options["run_at"], "run_at")
    if "expires_in" in options:
        values["expires_in"] = microseconds(seconds(options["expires_in"], "expires_in", positive=True))
    if "on_conflict" in options:
        values["on_conflict"] = _on_conflict(options, where, has_key=has_key or "key" in options)
    if "unique_for" in options:
        values["unique_for"] = _unique_for(options, where, has_key=has_key or "key" in options)
    if "tags" in options:
        values["tags"] = check_tags(options["tags"])
    if "meta" in options:
        values["meta"] = check_meta(options["meta"])
    if "runs_in" in options:
        values["runs_in"] = check_choice(options["runs_in"], get_args(RunsIn), "runs_in")
    if "after" in options:
        values["after"] = check_after(options["after"])
    if "if_dependency_fails" in options:
        values["if_dependency_fails"] = check_choice(
            options["if_dependency_fails"], get_args(IfDependencyFails), "if_dependency_fails"
        )
    if "weight" in options:
        values["weight"] = check_weight(options["weight"], f"{where}: weight")
    values["max_attempts"], values["overrides"] = _overrides(options, where)
    if "timeout" in options:
        values["timeout"] = _stored_timeout(options["timeout"])
    return Placement(**values, requirements=given_requirements(options, where), conn=options.get("conn"))


def _on_conflict(options: Mapping[str, Any], where: str, *, has_key: bool) -> Any:
    if not has_key:
        raise OptionError(f"{where}: on_conflict says what to do when the key is taken; give a key too")
    return check_choice(options["on_conflict"], get_args(OnConflict), "on_conflict")


def _unique_for(options: Mapping[str, Any], where: str, *, has_key: bool) -> int:
    if not has_key:
        raise OptionError(f"{where}: unique_for says for how long the key stays taken; give a key too")
    return microseconds(seconds(options["unique_for"], "unique_for", positive=True))


def _overrides(options: Mapping[str, Any], where: str) -> tuple[int | None, bytes | None]:
    found: dict[str, Any] = {}
    if "timeout" in options:
        found["timeout"] = _stored_timeout(options["timeout"])
    if "runs_in" in options:
        found["runs_in"] = options["runs_in"]
    if "retry" in options:
        retry = check_retry(options["retry"])
        if retry.wait is not None:
            raise OptionError(f"{where}: a function cannot be stored with a task; set Retry(wait=...) on the decorator")
        if retry.on is not None or retry.never:
            raise OptionError(
                f"{where}: types of errors cannot be stored with a task; set on= and never= on the decorator"
            )
        found.update(
            attempts=retry.attempts, first=retry.first, factor=retry.factor, cap=retry.cap, jitter=retry.jitter
        )
    if not found:
        return None, None
    return found.get("attempts"), msgspec.json.encode(Overrides(**found))


def _stored_timeout(value: Any) -> float:
    timeout = check_timeout(value)
    return NO_TIMEOUT if timeout is None else timeout


def check_name(value: Any, what: str) -> str:
    """Check the name of a queue, kind, key or tag: text that is not empty, not too long, and printable."""
    if not isinstance(value, str) or not value or len(value) > NAME_LENGTH or not value.isprintable():
        raise OptionError(f"{what} must be printable text of 1 to {NAME_LENGTH} characters, got {value!r}")
    return value


def check_title(value: Any) -> str:
    """Check a template for titles. The names in it are checked where the function is known."""
    if not isinstance(value, str) or not value:
        raise OptionError(f"title must be a template like 'Invoice {{number}}', got {value!r}")
    ArgumentTemplate(value, None, "title")
    return value


def one_line(title: str) -> str | None:
    """A title as it is stored: one line, shortened with an ellipsis. None if nothing printable is left."""
    line = " ".join("".join(char if char.isprintable() else " " for char in title).split())
    return (line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1]}…") or None


def check_priority(value: Any) -> int:
    """Check a priority: any 64-bit integer."""
    if isinstance(value, bool) or not isinstance(value, int) or not LOWEST_PRIORITY <= value <= HIGHEST_PRIORITY:
        raise OptionError(f"priority must be a whole number from -2**63 to 2**63 - 1, got {value!r}")
    return value


def check_count(value: Any, what: str) -> int:
    """Check a count: an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{what} must be a whole number from 1 on, got {value!r}")
    return value


def check_units(value: Any) -> int:
    """Check how many units a start counts."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_AT_ONCE:
        raise OptionError(f"units must be a whole number from 1 to {MOST_AT_ONCE}, got {value!r}")
    return value


def check_rate(value: Any) -> Rate:
    """Check that the value is a rate."""
    if not isinstance(value, Rate):
        raise OptionError(f'rate must be a Rate, like Rate(600, per="1m"), got {value!r}')
    return value


def check_limit(value: Any, what: str) -> int | None:
    """Check the value of a limit: an integer of at least 0, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OptionError(f"{what} must be a whole number from 0 on, or None for no limit, got {value!r}")
    if value > MOST_AT_ONCE:
        raise OptionError(f"{what} must be at most {MOST_AT_ONCE}, or None for no limit, got {value!r}")
    return value


def check_limit_name(value: Any, what: str) -> str:
    """Check the name of a limit, which may be a prefix of the addresses that it covers. Names that belong to a kind are
    rejected."""
    if isinstance(value, str) and value.startswith(RESERVED):
        raise OptionError(f"{what} {value!r} is the name of a kind's own limit; set it with engine.set_limit")
    return normal_prefix(value, what)


def check_any_limit_name(value: Any) -> str:
    """Check the name of an existing limit, including those that belong to a kind."""
    is_own = isinstance(value, str) and value.startswith(RESERVED)
    return str(value) if is_own else check_limit_name(value, "a limit")


def check_timeout(value: Any) -> float | None:
    """Check a timeout: more than zero seconds, or None for no timeout."""
    return None if value is None else seconds(value, "timeout", positive=True)


def check_retry(value: Any) -> Retry:
    """Check a retry policy. A number is converted to a policy with that many attempts."""
    if isinstance(value, Retry):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"retry must be a Retry or a number of attempts, got {value!r}")
    return Retry(attempts=value)


def check_choice(value: Any, choices: tuple[str, ...], what: str) -> Any:
    """Check that the value is one of the allowed ones."""
    if value not in choices:
        raise OptionError(f"{what} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_moment(value: Any, what: str) -> int:
    """Check an aware datetime that every store can hold and every time zone can show. Returns microseconds since
    1970."""
    if not isinstance(value, datetime):
        raise OptionError(f"{what} must be a datetime, got {value!r}; for a pause from now use delay")
    if value.tzinfo is None or value.utcoffset() is None:
        raise OptionError(f"{what} must have a time zone, got {value!r}; write datetime(..., tzinfo=UTC)")
    moment = from_datetime(value)
    if moment not in MOMENTS:
        raise OptionError(f"{what} must lie between the years 1900 and 3000, got {value!r}")
    return moment


def check_tags(value: Any) -> tuple[str, ...]:
    """Check a list of tags."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionError(f"tags must be a list of words, got {value!r}")
    return tuple(check_name(tag, "a tag") for tag in value)


def check_meta(value: Any) -> bytes:
    """Check a JSON object, and encode it."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"meta must be a dict with text keys, got {value!r}")
    return encode(dict(value), "meta")


class KindPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a kind."""

    title: str | None = None
    """A template over the arguments of each task."""
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    """The timeout in seconds. None means no timeout; UNSET means that of the provider or the engine."""
    retry: Retry
    runs_in: RunsIn
    max_running: int | None = None
    max_running_global: int | msgspec.UnsetType | None = msgspec.UNSET
    """The maximum number of running tasks on all nodes. None means no maximum, but an operator can set one. UNSET means
    that there is no such limit."""
    limits: tuple[str, ...] = ()
    limit_by: Callable[..., Any] | str | None = None
    limit: int | None = None
    rate: Rate | None = None
    batch: Batch | None = None
    """How tasks of the kind are run together. None: each runs alone."""
    units: int = 1
    """What each start of a task counts for the rates of its limits, unless a call has its own."""
    fair_by: Callable[..., Any] | str | None = None
    """Makes the tenant of each task. The tenants of the kind take turns."""
    weight: Weight = 1
    key: Callable[..., Any] | str | None = None
    """Makes the unique key of each task, unless a call has its own."""
    on_conflict: OnConflict = "return"
    unique_for: int | None = None
    """For how many microseconds after its acceptance a task's key stays taken. None: until the task has ended."""
    keep_for: int | None = None
    """For how many microseconds ended tasks remain in the history. None means as long as the retention says."""
    keep_result: bool = True
    """Whether results are stored."""
    api: bool = False
    """Whether the HTTP API enqueues tasks of the kind."""
    redact: bool | tuple[str, ...] = False
    """What the HTTP API and the dashboard hide, beside names like `password`: these arguments and fields, or all."""
    requirements: Requirements = NO_REQUIREMENTS
    """The requirements of the kind's tasks, unless a call has its own."""
    downstream_of: tuple[str, ...] = ()
    """The kinds that precede this kind in a pipeline."""
    urgent: bool = False
    """Whether tasks of the kind start at once: on a full node, preemptible tasks yield to them."""
    preemptible: bool = False
    """Whether tasks of the kind yield to urgent tasks. They are not charged for that."""
    uninterruptible: bool = False
    """Whether tasks of the kind never yield. A node that stops waits for them, whatever its grace."""
    hooks: tuple[tuple[str, Callable[..., Any]], ...] = ()
    middleware: tuple[Middleware, ...] = ()

    @property
    def has_key_queues(self) -> bool:
        """Whether the kind has key queues: one for each key, or a single one because of a rate or of batches."""
        return self.limit_by is not None or self.rate is not None or self.batch is not None

    def is_exceeded_by(self, timeout: float | None) -> bool:
        """Whether a call with this timeout (as in `Placement`) may run for longer than the kind's timeout allows."""
        if timeout is None or self.timeout is None:
            return False
        return timeout == NO_TIMEOUT or self.timeout is msgspec.UNSET or timeout > self.timeout


def kind_policy(options: Mapping[str, Any], where: str, *, is_coroutine: bool, default_retry: Retry) -> KindPolicy:
    """Check the options of a kind, and return its policy."""
    reject_unknown(options, (*TaskOptions.__annotations__, "batch"), where)
    values: dict[str, Any] = {"retry": default_retry, "runs_in": "loop" if is_coroutine else "thread"}
    if "title" in options:
        values["title"] = check_title(options["title"])
    if "queue" in options:
        values["queue"] = check_name(options["queue"], "queue")
    if "priority" in options:
        values["priority"] = check_priority(options["priority"])
    if "timeout" in options:
        values["timeout"] = check_timeout(options["timeout"])
    if "retry" in options:
        values["retry"] = check_retry(options["retry"])
    if "max_running" in options:
        values["max_running"] = check_count(options["max_running"], "max_running")
    values.update(_shared_limits(options, where))
    values.update(fair_options(options, where))
    if "key" in options:
        values["key"] = options["key"]
    if "on_conflict" in options:
        values["on_conflict"] = _on_conflict(options, where, has_key="key" in options)
    if "unique_for" in options:
        values["unique_for"] = _unique_for(options, where, has_key="key" in options)
    if "keep" in options:
        values["keep_for"] = microseconds(seconds(options["keep"], "keep"))
    if "keep_result" in options:
        values["keep_result"] = check_flag(options["keep_result"], "keep_result")
    if "api" in options:
        values["api"] = check_flag(options["api"], "api")
    if "redact" in options:
        values["redact"] = _redact(options["redact"])
    values["requirements"] = requirements_of_kind(given_requirements(options, where))
    if "downstream_of" in options:
        values["downstream_of"] = _kind_names(options["downstream_of"])
    values.update(urgency_options(options, where))
    values["hooks"] = check_hooks(options, where)
    if "middleware" in options:
        values["middleware"] = check_middlewares(options["middleware"], where)
    if "runs_in" in options:
        values["runs_in"] = check_runs_in(options["runs_in"], where, is_coroutine=is_coroutine)
    return KindPolicy(**values)


def _shared_limits(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the options of a kind that are limits over all nodes."""
    values: dict[str, Any] = {}
    if "max_running_global" in options:
        values["max_running_global"] = check_limit(options["max_running_global"], "max_running_global")
    if "limits" in options:
        values["limits"] = _limit_names(options["limits"])
    if "limit" in options:
        if "limit_by" not in options:
            raise OptionError(f"{where}: limit says how many of each key may run; give limit_by too, or use limits=")
        values["limit"] = check_limit(options["limit"], "limit")
    if "limit_by" in options:
        if "limit" not in options and "rate" not in options:
            raise OptionError(f"{where}: limit_by makes a key for each task; give limit or rate too")
        values["limit_by"] = options["limit_by"]
    if "rate" in options:
        values["rate"] = check_rate(options["rate"])
    if "batch" in options:
        values["batch"] = _batch(options, where)
    if "units" in options:
        values["units"] = check_units(options["units"])
    return values


def _batch(options: Mapping[str, Any], where: str) -> Batch:
    if not isinstance(options["batch"], Batch):
        raise OptionError(f"batch must be a Batch, like Batch(size=100, wait=2), got {options['batch']!r}")
    for name in ("limit_by", "rate", "fair_by"):
        if name in options:
            raise OptionError(
                f"{where}: batch and {name} cannot be given together; limit how many batches run with "
                "max_running_global or limits"
            )
    return options["batch"]


def _redact(value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionError(f'redact must be True, or a list of names, like ["iban"], got {value!r}')
    return tuple(sorted({check_name(name, "a name in redact") for name in value}))


def _kind_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionError(f'downstream_of must be a list of kinds, like ["earlier"], got {value!r}')
    return tuple(sorted({check_name(name, "a kind in downstream_of") for name in value}))


def _limit_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionError(f"limits must be a list of names, got {value!r}")
    return tuple(sorted({check_limit_name(name, "a limit") for name in value}))


def check_hooks(options: Mapping[str, Any], where: str) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Check the hooks: functions that are called when an attempt starts or when its task has ended."""
    for name in HOOKS:
        if name in options and not callable(options[name]):
            raise OptionError(f"{where}: {name} must be a function, got {options[name]!r}")
    return tuple((name, options[name]) for name in HOOKS if name in options)


def check_runs_in(value: Any, where: str, *, is_coroutine: bool) -> RunsIn:
    """Check where a task function runs. A plain function must not run on the event loop, which it would block, and a
    coroutine must not run in a thread."""
    checked: RunsIn = check_choice(value, get_args(RunsIn), "runs_in")
    if checked == "loop" and not is_coroutine:
        raise OptionError(f'{where}: a plain function would block the loop; use runs_in="thread" or make it async')
    if checked == "thread" and is_coroutine:
        raise OptionError(f'{where}: a coroutine runs in the loop; use runs_in="loop", or make it a plain function')
    return checked
