"""Policies: immutable values that are checked when they are created."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal

from synergon.errors import OptionError
from synergon.model.limits import NewLimit, NewRate
from synergon.model.requirements import UNIT
from synergon.model.tasks import Cutoffs
from synergon.options.durations import LONGEST_SECONDS, Duration, microseconds, seconds
from synergon.options.sizes import Size, size_bytes

CRASH_LIMIT: Final = 3
"""After this number of crashes a task ends `failed` with the reason `crashed`. Only crashes that the node has seen
count: the child process died while it ran the task function."""

OWNER_DEATH_LIMIT: Final = 10
"""A task also ends `failed` with the reason `crashed` when this number of nodes in a row have died while they ran it.
An attempt that ends starts the count again."""

SERVER_FAILURE_LIMIT: Final = 10
"""How many times a task may blame its server (`ServerFailed`) without a charge. After that, `ServerFailed` costs an
attempt, as any other error does."""

BLAME_DELAY_SECONDS: Final = 0.5
LONGEST_BLAME_DELAY_SECONDS: Final = 30.0
"""The longest delay before a task that has blamed its server runs again. It runs again at once while a server that it
has not tried is in service. After that the delay is `BLAME_DELAY_SECONDS`, then twice as long each time."""

REFUSAL_LIMIT: Final = 10
"""After this number of refusals a task ends `failed`. A node refuses a task whose arguments do not fit its task
function."""

DEFAULT_TIMEOUT_SECONDS: Final = 30 * 60.0
DEFAULT_QUEUE: Final = "default"
PAYLOAD_LIMIT_BYTES: Final = 1024 * 1024
LOWEST_PRIORITY: Final = -(2**63)
HIGHEST_PRIORITY: Final = 2**63 - 1
HIGHEST_FACTOR: Final = 1e9
MOST_ATTEMPTS: Final = 2**31 - 1
MOST_AT_ONCE: Final = 2**31 - 1
"""The highest value of a limit, and the most units of a task."""
MOST_OF_ANYTHING: Final = 1e9
"""The largest amount of a resource, in processors, GPUs or licences."""
LONGEST_WINDOW: Final = 62
"""How many outcomes of a server are remembered at most: one bit each, in one number of a row."""
LARGEST_BATCH: Final = 10_000
"""The largest number of tasks in one batch: they are claimed and finished in one transaction."""
LONGEST_NAME: Final = 100
"""The longest name of a resource or label, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a task function may run, and how long to wait between attempts.

    The delay before attempt n + 1 is `first * factor ** (n - 1)`, at most `cap`, varied by `jitter` in both directions.
    `wait`, a function of the attempt number, replaces first, factor, cap and jitter. An error whose type is in `never`,
    or not in `on`, is not retried.
    """

    attempts: int = 5
    first: float = 1.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.25
    wait: Callable[[int], float | timedelta] | None = field(default=None, compare=False)
    on: tuple[type[BaseException], ...] | None = None
    never: tuple[type[BaseException], ...] = ()

    if TYPE_CHECKING:  # it takes durations, and has seconds

        def __init__(
            self,
            *,
            attempts: int = 5,
            first: Duration = 1.0,
            factor: float = 2.0,
            cap: Duration = 600.0,
            jitter: float = 0.25,
            wait: Callable[[int], float | timedelta] | None = None,
            on: tuple[type[BaseException], ...] | None = None,
            never: tuple[type[BaseException], ...] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        is_whole = isinstance(self.attempts, int) and not isinstance(self.attempts, bool)
        if not is_whole or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise OptionError(f"Retry attempts must be a whole number from 1 to {MOST_ATTEMPTS}, got {self.attempts!r}")
        for name in ("first", "cap"):
            object.__setattr__(self, name, seconds(getattr(self, name), f"Retry {name}"))
        if not self._is_number(self.factor) or not 1 <= self.factor <= HIGHEST_FACTOR:
            raise OptionError(f"Retry factor must be a number from 1 to {HIGHEST_FACTOR:g}, got {self.factor!r}")
        object.__setattr__(self, "factor", float(self.factor))  # powers of whole numbers grow without end
        if not self._is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise OptionError(f"Retry jitter must be a number between 0 and 1, got {self.jitter!r}")
        if self.wait is not None and not callable(self.wait):
            raise OptionError(f"Retry wait must be a function of the attempt number, got {self.wait!r}")
        for name in ("on", "never"):
            object.__setattr__(self, name, _error_types(getattr(self, name), name))

    def retries(self, error: BaseException) -> bool:
        """Whether an attempt that raised this error may be retried."""
        return not isinstance(error, self.never) and (self.on is None or isinstance(error, self.on))

    def delay(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """The delay in seconds after the failed attempt with this number (1 is the first). Never negative, and
        bounded."""
        if isinstance(attempt, bool) or not isinstance(attempt, int):
            raise OptionError(f"Retry delay takes the number of an attempt, got {attempt!r}")
        if self.wait is not None:
            pause = self.wait(attempt)
            if isinstance(pause, timedelta):
                pause = pause.total_seconds()
        else:
            pause = self._without_jitter(max(attempt, 1)) * (1 + self.jitter * (2 * chance() - 1))
        is_number = pause == pause  # which NaN is not
        return float(min(max(pause, 0), LONGEST_SECONDS)) if is_number else self.cap

    def _without_jitter(self, attempt: int) -> float:
        try:
            return min(self.first * self.factor ** (attempt - 1), self.cap)
        except OverflowError:  # the power is past what a float holds, so it is past the cap too
            return self.cap if self.first else 0.0

    @staticmethod
    def _is_number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)


def _error_types(value: Any, name: str) -> tuple[type[BaseException], ...] | None:
    if value is None and name == "on":
        return None
    listed = tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in listed):
        raise OptionError(f"Retry {name} must be types of errors, like (ConnectionError,), got {value!r}")
    return listed


@dataclass(frozen=True, slots=True)
class Rate:
    """How many tasks may start in a given time, over all nodes. `Rate(10)` is ten per second, one every 100 ms.
    `Rate(10, per="1m", burst=5)` is ten per minute on average, and up to five at once after a pause. In the rate of a
    limit a start counts as many as the task has `units`; with `by="starts"` it counts one."""

    count: int
    per: Duration = 1.0
    burst: int = 1
    by: Literal["units", "starts"] = "units"

    def __post_init__(self) -> None:
        for name in ("count", "burst"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
                raise OptionError(f"Rate {name} must be a whole number from 1 on, got {value!r}")
        object.__setattr__(self, "per", seconds(self.per, "Rate per", positive=True))
        if self.by not in ("units", "starts"):
            raise OptionError(f"Rate by must be 'units' or 'starts', got {self.by!r}")

    @property
    def every(self) -> float:
        """The average number of seconds from one start to the next."""
        return float(self.per) / self.count  # type: ignore[arg-type]  # made seconds when it was made

    @property
    def record(self) -> NewRate:
        """The rate as a record for the store."""
        per = max(microseconds(seconds(self.per, "per")), 1)
        return NewRate(per=per, starts=self.count, burst=self.burst, by_units=self.by == "units")


_PERIODS: Final = {1_000_000: "second", 60_000_000: "minute", 3_600_000_000: "hour", 86_400_000_000: "day"}


def rate_text(rate: NewRate) -> str:
    """The rate for people: `600 per minute, 20 at once`."""
    period = _PERIODS.get(rate.per, f"{rate.per / 1_000_000:g} s")
    return f"{rate.starts} per {period}" + (f", {rate.burst} at once" if rate.burst > 1 else "")


def limit_text(limit: NewLimit) -> str:
    """The value and rate of a limit for people."""
    return str(limit.value) if limit.rate is None else f"{limit.value} ({rate_text(limit.rate)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How tasks of a kind are run together: the task function gets a list of them.

    A batch starts when `size` tasks wait for it, or when the oldest of them has waited for `wait`. `by` makes a key of
    each item, with a function or a template over its fields; only items with equal keys are run together.
    """

    size: int
    wait: Duration = 1.0
    by: Callable[..., str | int] | str | None = None

    def __post_init__(self) -> None:
        is_whole = isinstance(self.size, int) and not isinstance(self.size, bool)
        if not is_whole or not 1 <= self.size <= LARGEST_BATCH:
            raise OptionError(f"Batch size must be a whole number from 1 to {LARGEST_BATCH}, got {self.size!r}")
        object.__setattr__(self, "wait", seconds(self.wait, "Batch wait"))
        if self.by is not None and not isinstance(self.by, str) and not callable(self.by):
            raise OptionError(f"Batch by must be a function or a template like '{{customer}}', got {self.by!r}")

    @property
    def wait_seconds(self) -> float:
        """The longest time in seconds for which an item waits for others."""
        return float(self.wait)  # type: ignore[arg-type]  # made seconds when it was made


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """When a server is taken out of service, and how it comes back.

    It is taken out after `failures` failures in a row, and when the share `rate` of its last `window` tasks has failed
    (None: only failures in a row count). It gets no task for `backoff` seconds. Then it gets one task at a time until a
    task succeeds; with a `probe`, an `async def` function of a `Server`, no task until the probe returns. A probe that
    raises, returns False or takes longer than `probe_timeout` has failed. Each further back-off is twice as long, at
    most `cap`.
    """

    failures: int = 5
    backoff: Duration = 1.0
    cap: Duration = 60.0
    rate: float | None = 0.5
    window: int = 20
    probe: Callable[[Any], Awaitable[Any]] | None = None
    probe_timeout: Duration = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.failures, bool) or not isinstance(self.failures, int) or self.failures < 1:
            raise OptionError(f"Health failures must be a whole number from 1 on, got {self.failures!r}")
        for name in ("backoff", "cap", "probe_timeout"):
            object.__setattr__(self, name, seconds(getattr(self, name), f"Health {name}", positive=True))
        is_number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        if self.rate is not None and not (is_number and 0 < self.rate <= 1):
            raise OptionError(f"Health rate must be a share above 0 and up to 1, or None for none, got {self.rate!r}")
        is_whole = isinstance(self.window, int) and not isinstance(self.window, bool)
        if not is_whole or not 1 <= self.window <= LONGEST_WINDOW:
            raise OptionError(f"Health window must be a whole number from 1 to {LONGEST_WINDOW}, got {self.window!r}")
        if self.probe is not None and not _is_coroutine_function(self.probe):
            raise OptionError(f"Health probe must be an `async def` function of a Server, got {self.probe!r}")

    @property
    def most_failures(self) -> int | None:
        """How many failures among the last `window` tasks take a server out of service. None means that only failures
        in a row count."""
        return None if self.rate is None else ceil(self.rate * self.window)


def _is_coroutine_function(function: Any) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Amounts of resources: processors, memory, GPUs, and those that are named in `custom`.

    In a `cost`, resources that are left out are not used. In a node's `resources`, they are detected. Fractions are
    allowed; they are exact to a millionth, rounded down.
    """

    cpu: float | None = None
    ram: Size | None = None
    """The memory: bytes, or a size like "512MB" or "2GiB"."""
    gpu: float | None = None
    custom: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.custom, Mapping):
            raise OptionError(f'Resources custom must be a dict, like {{"license": 1}}, got {self.custom!r}')
        object.__setattr__(self, "custom", dict(self.custom))
        for name in self.custom:
            _check_resource(name)
        if self.ram is not None:
            object.__setattr__(self, "ram", size_bytes(self.ram, "Resources ram"))
        self.amounts()

    def amounts(self) -> dict[str, int]:
        """The amounts as integers, which are added and compared exactly: bytes of memory, millionths of everything
        else."""
        said = {name: value for name, value in (("cpu", self.cpu), ("gpu", self.gpu)) if value is not None}
        amounts = {name: _millionths(name, value) for name, value in (said | dict(self.custom)).items()}
        if self.ram is not None:
            amounts["ram"] = int(self.ram)
            if amounts["ram"] > MOST_OF_ANYTHING * UNIT:
                raise OptionError(f"Resources ram must be at most {MOST_OF_ANYTHING * UNIT:g} bytes, got {self.ram!r}")
        return amounts


def _check_resource(name: Any) -> None:
    is_word = isinstance(name, str) and name.isprintable() and not any(c.isspace() or c in ",=" for c in name)
    if not is_word or not 1 <= len(name) <= LONGEST_NAME:
        raise OptionError(
            f"the name of a resource is a word of at most {LONGEST_NAME} characters without blanks, commas and =, "
            f"got {name!r}"
        )
    if (known := name.casefold()) in (
        "cpu",
        "ram",
        "gpu",
    ):  # "CPU" beside cpu would be one that no node is found to have
        raise OptionError(f"{name!r} is not a custom resource; write Resources({known}=...)")


def _millionths(name: str, value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_OF_ANYTHING:  # which nan is not either
        raise OptionError(f"Resources {name} must be a number from 0 to {MOST_OF_ANYTHING:g}, got {value!r}")
    amount = int(value * UNIT + 0.001)  # down, so that three thirds fit into one; but 0.29 stays 0.29
    if value and not amount:
        raise OptionError(f"Resources {name} must be 0 or at least a millionth, got {value!r}")
    return amount


ONCE: Final = Retry(attempts=1)
"""The default policy: one attempt, no retry."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks an argument, a field or a result that the web API and the dashboard hide: `Annotated[str, Secret()]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long final tasks remain in the history, and how long statistics are kept. `None` keeps them for ever."""

    succeeded: Duration | None = "7d"
    failed: Duration | None = "30d"
    cancelled: Duration | None = "7d"
    statistics: Duration | None = "400d"

    def __post_init__(self) -> None:
        for name in ("succeeded", "failed", "cancelled", "statistics"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, seconds(value, f"Retention {name}"))


def cutoffs_of(retention: Retention, *, audit_seconds: float | None = None) -> Cutoffs:
    """The ages, in microseconds, after which a store deletes rows."""
    return Cutoffs(
        succeeded=_age(retention.succeeded),
        failed=_age(retention.failed),
        cancelled=_age(retention.cancelled),
        statistics=_age(retention.statistics),
        audit=_age(audit_seconds),
    )


def _age(retained: Duration | None) -> int | None:
    return None if retained is None else microseconds(seconds(retained, "retention"))
