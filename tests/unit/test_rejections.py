"""Mistakes: each has an error at the place where it is made, which says what, which value, and what to do; and nothing
is stored."""

from __future__ import annotations

import functools
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel
from tests.conftest import NewEngine
from tests.support import all_tasks

from synergon import (
    ConfigurationError,
    Engine,
    KindError,
    OptionError,
    PayloadError,
    Retention,
    Retry,
    SynergonError,
    TaskType,
)


@pytest.fixture
async def engine(new_engine: NewEngine, memory_url: str) -> AsyncIterator[Engine]:
    """A connected engine, in which nothing is stored at the end."""
    engine = new_engine(memory_url)
    async with engine:
        yield engine
        assert await all_tasks(engine) == []


@pytest.fixture
def greet(engine: Engine) -> TaskType[[str], [str], Any, str]:
    @engine.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    return greet


async def body() -> None: ...


def plain_body() -> None: ...


# ---------------------------------------------------------------- options

MISSPELT = {
    "prioritty": "did you mean 'priority'?",
    "retries": "did you mean 'retry'?",
    "time_out": "did you mean 'timeout'?",
    "zzz": "it takes ",
    "cron": "it takes ",
}


@pytest.mark.parametrize("name", MISSPELT)
def test_an_option_that_does_not_exist_is_refused(engine: Engine, greet: Any, name: str) -> None:
    options: dict[str, Any] = {name: 1}
    with pytest.raises(OptionError, match=f"@task of 'body' has no option '{name}'; {MISSPELT[name]}"):
        engine.task(**options)(body)
    with pytest.raises(OptionError, match=f"with_options of 'greet' has no option '{name}'; {MISSPELT[name]}"):
        greet.with_options(**options)
    with pytest.raises(OptionError, match=f"has no option '{name}'"):
        greet.call("Ada").with_options(**options)
    with pytest.raises(OptionError, match=f"has no option '{name}'"):
        engine.call("unknown").with_options(**options)
    assert "body" not in engine.kinds


async def test_a_setting_that_does_not_exist_is_refused(engine: Engine) -> None:
    options: dict[str, Any] = {"concurency": 1}
    with pytest.raises(TypeError, match="concurency"):
        Engine("memory://", **options)
    with pytest.raises(TypeError, match="concurency"):
        engine.worker(**options)
    with pytest.raises(TypeError, match="concurency"):
        await engine.run(**options)


def test_options_of_the_kind_and_of_the_call_are_not_mixed_up(engine: Engine, greet: Any) -> None:
    with pytest.raises(OptionError, match="@task of 'body' has no option 'delay'"):
        engine.task(delay=1)(body)  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(OptionError, match="has no option 'max_running'"):
        greet.with_options(max_running=1)
    with pytest.raises(OptionError, match="has no option 'name'"):
        greet.with_options(name="other")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 0}, "every of when_idle must be longer than zero, got 0"),
        ({"every": "soon"}, "every of when_idle must be seconds or a duration"),
        ({"timeout": -1}, "timeout of when_idle must be longer than zero"),
        ({"evry": 5}, "when_idle has no option 'evry'; it has every and timeout"),
    ],
)
def test_an_option_of_an_idle_hook_that_makes_no_sense_is_refused(
    engine: Engine, greet: Any, options: dict[str, Any], said: str
) -> None:
    for when_idle in (engine.when_idle, greet.when_idle):
        with pytest.raises(OptionError, match=said):
            when_idle(**options)


def test_what_cannot_be_an_idle_hook_is_refused(engine: Engine) -> None:
    def needs(number: int) -> None: ...

    def yields() -> Any:
        yield 1

    when_idle: Any = engine.when_idle
    with pytest.raises(OptionError, match="is called without arguments: missing a required argument: 'number'"):
        when_idle(needs)
    with pytest.raises(OptionError, match="is a generator"):
        when_idle(yields)
    with pytest.raises(OptionError, match="when_idle decorates functions, got 5; options are named"):
        when_idle(5)
    assert engine.idle_hooks == []


def test_a_method_that_never_was_is_an_attribute_error(engine: Engine) -> None:
    with pytest.raises(AttributeError, match="'Engine' object has no attribute 'enqeue'"):
        # Wrong on purpose.
        engine.enqeue  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(engine, "__wrapped__")


BAD_OPTIONS: list[tuple[str, Any, str]] = [
    ("queue", "", "queue must be printable text of 1 to 200 characters, got ''"),
    ("queue", "a\nb", "queue must be printable text"),
    ("queue", "x" * 201, "queue must be printable text"),
    ("queue", "", "queue must be printable text .* got ''"),
    ("priority", 2**63, r"priority must be a whole number from -2\*\*63 to 2\*\*63 - 1, got 9223372036854775808"),
    ("priority", -(2**63) - 1, "priority must be a whole number"),
    ("priority", 1.5, "priority must be a whole number .* got 1.5"),
    ("priority", True, "priority must be a whole number .* got True"),
    ("priority", "high", "priority must be a whole number .* got 'high'"),
    ("timeout", 0, "timeout must be longer than zero, got 0"),
    ("timeout", -1, "timeout must be longer than zero, got -1"),
    ("timeout", "soon", 'timeout must be seconds or a duration like "500ms" or "10m", got \'soon\''),
    ("timeout", float("nan"), "timeout must be longer than zero, got nan"),
    ("retry", 0, "Retry attempts must be a whole number from 1 to 2147483647, got 0"),
    ("retry", "often", "retry must be a Retry or a number of attempts, got 'often'"),
    ("retry", True, "retry must be a Retry or a number of attempts, got True"),
    ("retry", 2**31, "Retry attempts must be a whole number from 1 "),
    ("runs_in", "orbit", "runs_in must be one of 'loop', 'thread', 'process', got 'orbit'"),
]

BAD_CALL_OPTIONS: list[tuple[str, Any, str]] = [
    ("delay", -1, "delay must be not negative, got -1"),
    ("delay", -0.001, "delay must be not negative, got -0.001"),
    ("delay", float("nan"), "delay must be not negative, got nan"),
    ("delay", float("inf"), "delay must be at most 100 years, got inf"),
    ("delay", 1e30, "delay must be at most 100 years"),
    ("delay", 10**400, "delay must be at most 100 years"),
    ("delay", timedelta.max, "delay must be at most 100 years"),
    ("delay", timedelta(seconds=-1), "delay must be not negative, got datetime.timedelta"),
    ("delay", "ten minutes", 'delay must be seconds or a duration like "500ms" or "10m", got \'ten minutes\''),
    ("delay", "-5s", "delay must be seconds or a duration"),
    ("delay", "5 fortnights", "delay must be seconds or a duration"),
    ("delay", "9" * 400, "delay must be at most 100 years"),
    ("delay", True, "delay must be a number of seconds, a timedelta or a duration, got True"),
    ("run_at", datetime(2026, 1, 1), r"run_at must have a time zone, .*; write datetime\(..., tzinfo=UTC\)"),  # noqa: DTZ001
    ("run_at", 5, "run_at must be a datetime, got 5; for a pause from now use delay"),
    ("run_at", "2026-01-01", "run_at must be a datetime, got '2026-01-01'"),
    *(
        ("run_at", moment.replace(tzinfo=timezone(timedelta(hours=hours))), "run_at must lie between the years 1900")
        for moment in (datetime.min, datetime(1899, 12, 31), datetime(3000, 1, 2), datetime.max)  # noqa: DTZ001, DTZ901
        for hours in (-5, 0, 5)
    ),
    ("expires_in", 0, "expires_in must be longer than zero, got 0"),
    ("expires_in", -1, "expires_in must be longer than zero, got -1"),
    ("key", "", "key must be printable text"),
    ("key", 42, "key must be printable text .* got 42"),
    ("on_conflict", "return", "on_conflict says what to do when the key is taken; give a key too"),
    ("unique_for", "1h", "unique_for says for how long the key stays taken; give a key too"),
    ("title", "", "title must be a template like 'Invoice {number}', got ''"),
    ("title", 5, "title must be a template like 'Invoice {number}', got 5"),
    ("title", "{", "title is no template"),
    ("tags", "urgent", "tags must be a list of words, got 'urgent'"),
    ("tags", 5, "tags must be a list of words, got 5"),
    ("tags", [5], "a tag must be printable text .* got 5"),
    ("tags", [""], "a tag must be printable text"),
    ("meta", [1], r"meta must be a dict with text keys, got \[1\]"),
    ("meta", {1: 2}, "meta must be a dict with text keys, got {1: 2}"),
    ("meta", {"lock": threading.Lock()}, "meta cannot be JSON: a lock cannot be JSON"),
    ("meta", {"x": "x" * 2**20}, "meta has 1048584 bytes as JSON, more than the limit"),
]


@pytest.mark.parametrize(("name", "value", "said"), BAD_OPTIONS)
def test_an_option_with_a_value_that_makes_no_sense_is_refused(
    engine: Engine, greet: Any, name: str, value: Any, said: str
) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises((OptionError, PayloadError), match=said):
        engine.task(**options)(body)
    with pytest.raises((OptionError, PayloadError), match=said):
        greet.with_options(**options)
    assert "body" not in engine.kinds


@pytest.mark.parametrize(("name", "value", "said"), BAD_CALL_OPTIONS, ids=lambda part: str(part)[:30])
async def test_an_option_of_a_call_with_a_value_that_makes_no_sense_is_refused(
    engine: Engine, greet: Any, name: str, value: Any, said: str
) -> None:
    options: dict[str, Any] = {name: value}
    for place in (greet.with_options, greet.call("Ada").with_options, engine.call("far").with_options):
        with pytest.raises((OptionError, PayloadError), match=said):
            place(**options)


def test_options_that_contradict_each_other_are_refused(engine: Engine, greet: Any) -> None:
    with pytest.raises(OptionError, match="with_options of 'greet': give delay or run_at, not both"):
        greet.with_options(delay=1, run_at=datetime.now().astimezone())
    with pytest.raises(OptionError, match="on_conflict must be one of 'return', 'raise', 'replace', got 'ignore'"):
        greet.with_options(key="a", on_conflict="ignore")
    with pytest.raises(OptionError, match="unique_for must be longer than zero, got 0"):
        greet.with_options(key="a", unique_for=0)
    with pytest.raises(OptionError, match="unique_for must be seconds or a duration like"):
        greet.with_options(key="a", unique_for="soon")
    with pytest.raises(OptionError, match=r"a function cannot be stored with a task; set Retry\(wait=...\)"):
        greet.with_options(retry=Retry(wait=lambda attempt: 1.0))


@pytest.mark.parametrize("max_running", [0, -1, 1.5, True, "two", None])
def test_max_running_is_a_whole_number_from_one_on(engine: Engine, max_running: Any) -> None:
    with pytest.raises(OptionError, match=f"max_running must be a whole number from 1 on, got {max_running!r}"):
        engine.task(max_running=max_running)(body)


def test_a_body_runs_where_it_can(engine: Engine, greet: Any) -> None:
    plain = engine.task(name="plain")(plain_body)
    with pytest.raises(OptionError, match='a plain function would block the loop; use runs_in="thread" or make it'):
        engine.task(runs_in="loop")(plain_body)
    with pytest.raises(OptionError, match='a coroutine runs in the loop; use runs_in="loop", or make it a plain'):
        engine.task(runs_in="thread")(body)
    for place in (plain.with_options, plain.call().with_options):
        with pytest.raises(OptionError, match="'plain' is a plain function and would block the loop"):
            place(runs_in="loop")
    for place in (greet.with_options, greet.call("Ada").with_options):
        with pytest.raises(OptionError, match="'greet' is a coroutine, which runs in the loop or a process"):
            place(runs_in="thread")


def test_a_function_that_a_child_could_not_import_is_refused_when_it_is_registered(engine: Engine, greet: Any) -> None:
    def local() -> None: ...

    said = "cannot run in a process: .* is defined inside a function; define it at the top of a module"
    with pytest.raises(ConfigurationError, match=f"task 'local' {said}"):
        engine.task(runs_in="process")(local)
    with pytest.raises(ConfigurationError, match=said):
        engine.task(runs_in="process", name="anonymous")(lambda: None)
    for place in (greet.with_options, greet.call("Ada").with_options):
        with pytest.raises(ConfigurationError, match=f"task 'greet' {said}"):
            place(runs_in="process")

    def main() -> None: ...

    main.__module__, main.__qualname__ = "__main__", "script"
    with pytest.raises(ConfigurationError, match="script is defined in __main__"):
        engine.task(runs_in="process", name="script")(main)


# ---------------------------------------------------------------- kinds and signatures


def test_two_functions_cannot_have_one_kind(engine: Engine, greet: Any) -> None:
    with pytest.raises(
        KindError,
        match=r"two functions under the kind 'greet': .*greet and .*test_rejections.body; give one of them name=",
    ):
        engine.task(name="greet")(body)
    assert engine.kinds["greet"] is greet


@pytest.mark.parametrize("name", ["", "with space", "slash/ed", "x" * 201, 5, None, "new\nline", "<lambda>"])
def test_a_kind_has_a_name_that_reads_well(engine: Engine, name: Any) -> None:
    with pytest.raises(OptionError, match=r"a kind's name is made of letters, digits and _ \. : -, got "):
        engine.task(name=name)(body)
    with pytest.raises(SynergonError):
        engine.call(name)


def test_what_is_no_function_cannot_be_a_task(engine: Engine) -> None:
    class NotAFunction: ...

    for thing in (NotAFunction, "text", 5):
        with pytest.raises(ConfigurationError, match=r"@engine\.task decorates functions, got "):
            engine.task(thing)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(OptionError, match=r"give name=\.\.\."):
        engine.task(functools.partial(plain_body))
    with pytest.raises(
        ConfigurationError, match=r"task 'part' is no function but functools\.partial.*; write one that"
    ):
        engine.task(name="part")(functools.partial(plain_body))

    class Called:
        size: int = 1

        def __call__(self) -> None: ...

    with pytest.raises(ConfigurationError, match=r"task 'called' is no function but .*Called object.*; write one"):
        engine.task(name="called")(Called())


def test_an_annotation_that_cannot_be_evaluated_is_refused(engine: Engine) -> None:
    def quoted(size: int) -> None: ...

    quoted.__annotations__["size"] = '"int" | None'
    with pytest.raises(ConfigurationError, match=r"an annotation of task 'quoted' cannot be evaluated: unsupported"):
        engine.task(quoted)


def test_a_body_returns_once(engine: Engine) -> None:
    @engine.task
    def fine() -> list[int]:
        return []

    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(ConfigurationError, match="is a generator; a task function returns once"):
            engine.task(function)


def test_a_payload_has_named_arguments(engine: Engine) -> None:
    def star(*values: int) -> None: ...

    def double_star(**values: int) -> None: ...

    for function, shown in ((star, r"\*values"), (double_star, r"\*\*values")):
        with pytest.raises(
            ConfigurationError, match=rf"takes {shown}.*: a payload needs named arguments, so give each"
        ):
            engine.task(function)


class Custom:
    """Nothing that JSON has a way for."""


class Model(BaseModel):
    """A pydantic model."""

    number: int


@pytest.mark.parametrize(
    "annotation",
    [socket.socket, Custom, list[Custom], dict[str, Custom], Custom | None, Callable[[int], int], threading.Event],
    ids=str,
)
def test_an_annotation_that_cannot_be_json_is_refused_when_the_task_is_registered(
    engine: Engine, annotation: Any
) -> None:
    def with_argument(value: Any) -> None: ...

    def with_result() -> Any: ...

    with_argument.__annotations__ = {"value": annotation, "return": None}
    with_result.__annotations__ = {"return": annotation}
    with pytest.raises(ConfigurationError, match=r"'with_argument'.*cannot be JSON"):
        engine.task(with_argument)
    with pytest.raises(ConfigurationError, match=r"'with_result'.*cannot be JSON"):
        engine.task(with_result)


def test_an_annotation_that_names_nothing_is_refused(engine: Engine) -> None:
    # Wrong on purpose: the annotation cannot be evaluated.
    def early(value: NotDefinedYet) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(
        ConfigurationError, match=r"names something that is not defined yet: .*NotDefinedYet.*; define the"
    ):
        engine.task(early)


# ---------------------------------------------------------------- arguments


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_stored(engine: Engine) -> None:
    @engine.task
    async def order(item: str, amount: int, *, note: str = "") -> None: ...

    bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, r"task 'order' needs amount, item; it takes \(item, amount, note\)"),
        (("book",), {}, "task 'order' needs amount"),
        (("book", 1, "x"), {}, "task 'order' takes 2 positional arguments, got 3"),
        (("book", 1), {"colour": "red"}, "task 'order' has no argument 'colour'"),
        (("book", 1), {"item": "pen"}, "task 'order' got two values for 'item'"),
        (("book", "many"), {}, r"Expected `int`, got `str` - at `\$.amount`"),
        ((5, 1), {}, r"Expected `str`, got `int` - at `\$.item`"),
        (("book", 1.5), {}, "Expected `int`, got `float`"),
        (("book", None), {}, "Expected `int`, got `null`"),
        (("book", 1), {"note": None}, "Expected `str"),
        ((threading.Lock(), 1), {}, "the payload of task 'order' cannot be JSON: a lock cannot be JSON"),
        (("\ud800", 1), {}, "the payload of task 'order' cannot be JSON"),
        (("x" * 2**20, 1), {}, "the payload of task 'order' has 1048598 bytes as JSON, more than the limit of 1048576"),
    ]
    for args, kwargs, said in bad:
        for place in (order.call, order.with_options(priority=1).call):
            with pytest.raises(PayloadError, match=said):
                place(*args, **kwargs)
        with pytest.raises(PayloadError, match=said):
            await order.enqueue(*args, **kwargs)
        with pytest.raises(PayloadError, match=said):
            engine.call("order", *args, **kwargs)


async def test_a_payload_of_just_the_allowed_size_is_taken(engine: Engine, greet: Any) -> None:
    overhead = len('{"name":""}')
    handle = await greet.enqueue("x" * (2**20 - overhead))
    await engine.delete(handle.id)
    with pytest.raises(PayloadError, match="has 1048577 bytes"):
        await greet.enqueue("x" * (2**20 - overhead + 1))


async def test_a_model_that_refuses_its_value_is_refused_at_the_call(engine: Engine) -> None:
    @engine.task
    async def take(model: Model) -> None: ...

    for value in ({"number": "many"}, {"nmbr": 1}, 5):
        with pytest.raises(PayloadError, match="the payload of task 'take' does not fit its signature"):
            await take.enqueue(value)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_a_number_that_json_does_not_have_is_refused_also_where_nothing_is_annotated(
    engine: Engine, value: float
) -> None:
    @engine.task
    async def typed(number: float) -> None: ...

    @engine.task
    async def untyped(value: Any) -> None: ...

    with pytest.raises(PayloadError):
        await typed.enqueue(value)
    for hidden in (value, [value], {"deep": {"down": value}}):
        with pytest.raises(PayloadError):
            await untyped.enqueue(hidden)
    with pytest.raises(PayloadError):
        engine.call("elsewhere", value=value)


async def test_a_call_by_name_of_an_unknown_function_needs_names(engine: Engine) -> None:
    with pytest.raises(PayloadError, match=r"the function of kind 'far' is not known here, so name its arguments: far"):
        engine.call("far", 1)
    with pytest.raises(PayloadError, match="the payload of task 'far' cannot be JSON: a lock cannot be JSON"):
        engine.call("far", value=threading.Lock())


# ---------------------------------------------------------------- settings

BAD_SETTINGS: list[tuple[str, Any, str]] = [
    ("concurrency", 0, "concurrency must be a whole number from 1 on, got 0"),
    ("concurrency", "many", "concurrency must be a whole number from 1 on, got 'many'"),
    ("concurrency", 2.0, "concurrency must be a whole number from 1 on, got 2.0"),
    ("queues", "mail", "queues must be a list of names, or a dict of names and how many may run at once, got 'mail'; "),
    ("queues", [], r"how many may run at once, got \[\]; None serves every queue"),
    ("queues", {}, r"how many may run at once, got \{\}; None serves every queue"),
    ("queues", [1], r"how many may run at once, got \[1\]"),
    ("queues", 5, "how many may run at once, got 5"),
    ("queues", [""], "queue must be printable text"),
    ("queues", {"mail": 0}, "the bound of queue 'mail' must be a whole number from 1 on, got 0"),
    ("queues", {"mail": "2"}, "the bound of queue 'mail' must be a whole number from 1 on, got '2'"),
    ("queues", {"mail": 10**12}, "the bound of queue 'mail' must be at most 100000"),
    ("timeout", 0, "timeout must be longer than zero, got 0"),
    ("lease", 0.1, "lease must be between half a second and an hour, got 0.1"),
    ("lease", "2h", "lease must be between half a second and an hour, got '2h'"),
    ("lease", None, "lease must be a number of seconds"),
    ("sweep", 0, "sweep must be longer than zero, got 0"),
    ("grace", -1, "grace must be not negative, got -1"),
    ("name", "", "name must be printable text"),
    ("retention", 5, "retention must be a Retention, got 5"),
    ("threads", 0, "threads must be a whole number from 1 on, got 0"),
    ("child_processes", 0, "child_processes must be a whole number from 1 on, got 0"),
    ("child_tasks", "x", "child_tasks must be a whole number from 1 on, got 'x'"),
    ("child_memory", "much", 'child_memory must be bytes or a size like "512MB" or "2GiB", got \'much\''),
    ("child_memory", -1, "child_memory must be bytes or a size"),
]
NODE_SETTINGS = {"concurrency", "threads", "queues", "timeout", "lease", "sweep", "grace", "name"}


@pytest.mark.parametrize(("name", "value", "said"), BAD_SETTINGS)
def test_a_setting_with_a_value_that_makes_no_sense_is_refused(
    engine: Engine, memory_url: str, name: str, value: Any, said: str
) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(OptionError, match=said):
        Engine(memory_url, **options)
    if name in NODE_SETTINGS:
        with pytest.raises(OptionError, match=said):
            engine.worker(**options)


def test_a_retention_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(OptionError, match="Retention failed must be not negative, got -1"):
        Retention(failed=-1)
    with pytest.raises(OptionError, match="Retention succeeded must be seconds or a duration"):
        Retention(succeeded="long")


# ---------------------------------------------------------------- stores

BAD_URLS = {
    "": "looks like sqlite:///app.db, postgresql://host/db or memory://",
    "app.db": "looks like sqlite:///app.db, postgresql://host/db or memory://, got 'app.db'",
    "memory:": "looks like sqlite:///app.db, postgresql://host/db or memory://",
    "sqlite://": "names no file; write sqlite:///app.db",
    "sqlite:///": "names no file; write sqlite:///app.db",
    "sqlite://app.db": "names no file; write sqlite:///app.db",
    "sqlite:///:memory:": "names no file; .* or memory:// for none",
    "sqlite:///app.db?mode=ro": "takes no parameters but slow, as in \\?slow=500ms, got 'sqlite:///app.db",
    "sqlite:///app.db?slow=often": 'slow must be seconds or a duration like "500ms"',
    "sqlite:///app.db?slow=0": "slow must be longer than zero, got '0'; write it as in",
    "sqlite:///app.db#1": "escape # in a sqlite:/// URL as %23",
    "mysql://localhost/db": "no store is called 'mysql'; use sqlite:///, postgresql:// or memory://",
    "redis://localhost": "no store is called 'redis'",
}


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_makes_no_sense_is_refused_when_the_engine_is_made(url: str) -> None:
    with pytest.raises(ConfigurationError, match=BAD_URLS[url]):
        Engine(url)


@pytest.mark.parametrize("url", [None, 5, b"memory://"])
def test_a_url_is_text(url: Any) -> None:
    with pytest.raises(
        OptionError, match=r"a store's URL looks like sqlite:///app\.db, postgresql://host/db or memory://, got"
    ):
        Engine(url)


@pytest.mark.parametrize("logger", [5, "synergon", print])
def test_a_logger_logs(logger: Any) -> None:
    with pytest.raises(OptionError, match=r"logger must be a logging\.Logger, got"):
        Engine("memory://", logger=logger)
    adapter: Any = logging.LoggerAdapter(logging.getLogger("mine"))
    assert Engine("memory://", logger=adapter).logger is adapter


# ---------------------------------------------------------------- lists and listings


@pytest.mark.parametrize("limit", [0, -1, 10_001, 10**30, True, "7", None])
async def test_the_limit_of_a_page_is_a_number_from_1_to_10000(engine: Engine, limit: Any) -> None:
    for listing in (engine.audit, engine.tasks):
        with pytest.raises(OptionError, match="limit must be a whole number from 1 to 10000, got "):
            await listing(limit=limit)


@pytest.mark.parametrize("state", [1, [1], ["redy"], object()])
async def test_a_state_that_does_not_exist_is_refused(engine: Engine, state: Any) -> None:
    with pytest.raises(OptionError, match="a task's state is one of waiting, "):
        await engine.tasks(state=state)


@pytest.mark.parametrize("given", [None, 7])
async def test_what_is_no_list_of_calls_is_refused(engine: Engine, greet: Any, given: Any) -> None:
    with pytest.raises(OptionError, match=rf"engine.enqueue takes a list of calls, .* got {given}"):
        await engine.enqueue(given)
    with pytest.raises(PayloadError, match=f"enqueue_many takes a list of tuples or dicts of arguments, got {given}"):
        await greet.enqueue_many(given)
