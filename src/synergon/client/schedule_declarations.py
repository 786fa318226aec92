"""Definitions of schedules from what users write, and the schedules that code declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, get_args

from synergon.call import Call
from synergon.errors import ConfigurationError, KindError, OptionError, PayloadError
from synergon.model.record import is_storable
from synergon.model.schedules import Missed, NewSchedule, Overlap
from synergon.options.durations import Duration, microseconds, seconds
from synergon.options.options import check_choice, check_moment, check_name, reject_unknown
from synergon.options.timetable import check_cron, check_timetable, zone
from synergon.task import AnyTask, TaskType

if TYPE_CHECKING:
    from synergon.model.clock import Clock
    from synergon.model.tasks import NewTask
    from synergon.node.node import Node

Scheduled = TypeVar("Scheduled", bound=AnyTask)


class DeclarationOptions(TypedDict, total=False):
    """The options of `@engine.every`, which all schedules have."""

    missed: Missed
    overlap: Overlap
    jitter: Duration
    starts_at: datetime | None
    ends_at: datetime | None


class CronOptions(DeclarationOptions, total=False):
    """The options of `@engine.cron`."""

    tz: str


class ScheduleOptions(CronOptions, total=False):
    """The options of `engine.schedule` and `engine.schedules.create`."""

    cron: str
    every: Duration


def fields_of(options: Mapping[str, Any], where: str, now: int) -> dict[str, Any]:
    """The fields of a `NewSchedule` that these options set. Raises an OptionError that names the wrong option."""
    reject_unknown(options, ScheduleOptions.__annotations__, where)
    if "cron" in options and "every" in options:
        raise OptionError(f"{where}: give cron or every, not both")
    fields: dict[str, Any] = {}
    if "tz" in options:
        fields["tz"] = _check_zone(options["tz"])
    if "cron" in options:
        fields |= {"cron": check_cron(options["cron"], fields.get("tz", "UTC"), now), "every": None}
    if "every" in options:
        interval = microseconds(seconds(options["every"], "every", positive=True))
        fields |= {"tz": "UTC", **fields, "every": interval, "cron": None}
    if "missed" in options:
        fields["missed"] = check_choice(options["missed"], get_args(Missed), "missed")
    if "overlap" in options:
        fields["overlap"] = check_choice(options["overlap"], get_args(Overlap), "overlap")
    if "jitter" in options:
        fields["jitter"] = microseconds(seconds(options["jitter"], "jitter"))
    for name in ("starts_at", "ends_at"):
        if name in options:
            fields[name] = None if options[name] is None else check_moment(options[name], name)
    return fields


def _check_zone(value: Any) -> str:
    if not isinstance(value, str):
        raise OptionError(f"tz must be the name of a time zone, like 'Europe/Berlin', got {value!r}")
    zone(value)
    return value


def new_task(call: Any, where: str) -> NewTask:
    """Make the task that each occurrence of a schedule inserts. Raises OptionError if `call` cannot be scheduled."""
    if not isinstance(call, Call):
        raise OptionError(f"{where} takes a call, like report.call('eu'), got {call!r}")
    if call.task_type is not None and call.task_type.is_command:
        raise OptionError(f"{where}: a command cannot be scheduled; schedule a task that sends it")
    placement = call.placement
    for option in ("delay", "run_at", "conn"):
        if getattr(placement, option) is not None:
            raise OptionError(f"{where}: the call has the option {option!r}; the schedule decides when it runs")
    if placement.after or placement.if_dependency_fails != "cancel":
        option = "after" if placement.after else "if_dependency_fails"
        raise OptionError(
            f"{where}: the call has the option {option!r}, but the task of an occurrence depends on no other task; "
            "schedule a task that enqueues this one, or a flow"
        )
    task = call.to_new_task()
    if task.on_conflict != "return":
        raise OptionError(
            f"{where}: the call has on_conflict={task.on_conflict!r}; an occurrence is skipped "
            'if its key is taken, which is on_conflict="return"'
        )
    if not is_storable(task.limit_key or ""):
        raise OptionError(f"{where}: the key {task.limit_key!r} of limit_by cannot be stored")
    return task


def definition_of(name: Any, call: Any, options: Mapping[str, Any], now: int) -> NewSchedule:
    """Make the definition of a schedule. Raises OptionError if its options are invalid."""
    name = check_name(name, "a schedule's name")
    where = f"schedule {name!r}"
    fields = fields_of(options, where, now)
    if fields.get("cron") is None and fields.get("every") is None:
        raise OptionError(f'{where}: give cron="0 3 * * *" or every="1h"')
    definition = NewSchedule(name=name, task=new_task(call, where), **fields)
    check_timetable(definition, now)
    return definition


class ScheduleDeclarations:
    """The part of an engine that declares schedules in code. They are stored when a worker starts, and fire while a
    live worker declares them."""

    _declared_schedules: dict[str, NewSchedule]

    if TYPE_CHECKING:

        @property
        def clock(self) -> Clock:
            """The clock of the engine."""

        @property
        def _node(self) -> Node | None:
            """The node that runs in this process, if any."""

    def schedule(self, name: str, call: Call[Any], **options: Unpack[ScheduleOptions]) -> None:
        """Declare a schedule: `engine.schedule("nightly", report.call("eu"), cron="0 3 * * *", tz="Europe/Berlin")`.

        `cron` or `every` say when; `missed` ("one", "skip", "all") what happens to occurrences that no worker could
        fire in time; `overlap` ("skip", "queue") what happens while the previous task has not ended; each occurrence is
        delayed by at most `jitter`; no occurrence is before `starts_at` or after `ends_at`.
        """
        definition = definition_of(name, call, options, self.clock.wall())
        if definition.name in self._declared_schedules:
            raise OptionError(f"two schedules are declared under the name {name!r}; give one of them another name")
        if self._node is not None:
            raise KindError(
                f"the worker of this engine runs already and would never fire the schedule {name!r}; declare all "
                "schedules before it starts, or use engine.schedules.create"
            )
        self._declared_schedules[definition.name] = definition

    def cron(
        self, cron: str, /, *, name: str | None = None, **options: Unpack[CronOptions]
    ) -> Callable[[Scheduled], Scheduled]:
        """Declare a schedule for the task below: `@engine.cron("0 9 * * mon-fri", tz="Europe/Berlin")`. Its name is
        that of the kind, unless one is given."""
        return self._decorator("cron", name, {**options, "cron": cron})

    def every(
        self, interval: Duration, /, *, name: str | None = None, **options: Unpack[DeclarationOptions]
    ) -> Callable[[Scheduled], Scheduled]:
        """Declare a schedule for the task below: `@engine.every("30s")`. The interval counts from the moment at which
        the schedule is first stored, or from `starts_at`, so occurrences do not drift."""
        return self._decorator("every", name, {**options, "every": interval})

    def _decorator(self, verb: str, name: str | None, options: Mapping[str, Any]) -> Callable[[Scheduled], Scheduled]:
        fields_of(options, f"@engine.{verb}", self.clock.wall())  # a mistake in the options is one of this line

        def declare(task: Scheduled) -> Scheduled:
            if not isinstance(task, TaskType):
                raise ConfigurationError(f"@engine.{verb} stands above @engine.task, got {task!r}")
            try:
                call = task.call()
            except PayloadError as error:
                raise PayloadError(
                    f"@engine.{verb} calls task {task.kind!r} without arguments: {error}; with arguments use "
                    f"engine.schedule(name, {task._name_in_code}.call(...), {verb}=...)"
                ) from error
            self.schedule(task.kind if name is None else name, call, **options)
            return task

        return declare
