"""`synergon worker`: runs a node in this process, or several nodes in processes of their own.

The exit code is 0 after a graceful stop or a drain. The first SIGINT or SIGTERM stops the worker gracefully, the second
at once.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import typer

from synergon.cli import logs
from synergon.cli.apps import load_engine
from synergon.cli.database import find_app, require_shared_store
from synergon.cli.output import plural
from synergon.cli.supervisor_link import connect_to_supervisor
from synergon.doctor.unknown_variables import unknown_variables
from synergon.engine import Engine
from synergon.errors import ConfigurationError, OptionError
from synergon.model.printable import printing
from synergon.options.settings import AUTO, Settings, from_text, load, queue_words, queues_of
from synergon.options.store_urls import shown

LAST_PORT: Final = 65535

logger: Final = logging.getLogger("synergon.cli")
printing(logger)


def worker(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:ENGINE",
            show_default=False,
            help="The engine to run; `app` means app:engine. Default: $SYNERGON_APP, then `app` in pyproject.toml.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", metavar="NUMBER", help="How many tasks run at once in each process."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="NUMBER", help="How many of them may be plain functions, which run in threads."
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME[=NUMBER]",
            help="Serve only this queue, with at most NUMBER of its tasks at once; repeatable.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Number of worker processes to keep running.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when there are no tasks left to run.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a .py file below the current folder changes.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="A readable name of the node. Default: host and pid.")
    ] = None,
    lease: Annotated[
        str | None, typer.Option(metavar="DURATION", help="After how long without a renewal others take over.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How often to look for tasks that no hint announced.")
    ] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a stop waits for running tasks; none: for ever.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Timeout of tasks that have none of their own; none: no timeout."),
    ] = None,
    resources: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNTS",
            help="Resources of each process, like cpu=4,ram=8GiB,gpu=1,license=2. Default: those of the machine.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="LABEL", help="A label that tasks may need or forbid; repeatable."),
    ] = None,
    health_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to answer /health, /ready and /metrics. Default: nowhere."),
    ] = None,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="A module with tasks to import first; repeatable."),
    ] = None,
    log_level: logs.LevelOption = logs.Level.INFO,
    log_tasks: Annotated[
        logs.TaskLines,
        typer.Option(
            metavar="WHICH",
            envvar="SYNERGON_LOG_TASKS",
            help="Log which tasks that end: off, failures, or all, with their seconds.",
        ),
    ] = logs.TaskLines.FAILURES,
    log_format: logs.FormatOption = logs.Format.TEXT,
    supervisor_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run tasks.

    Stops at SIGINT or SIGTERM, at an operator action (see `synergon nodes`) or, with --drain, when no tasks are left.
    The first signal lets running tasks finish, the second stops at once. A DURATION is in seconds, or like 500ms or
    10m.
    """
    found = find_app(app)
    if found is None:
        raise OptionError("which app? write `synergon worker app:engine`, or set $SYNERGON_APP")
    given = _given(
        {"name": name, "lease": lease, "sweep": sweep, "grace": grace, "timeout": timeout},
        concurrency=concurrency,
        threads=threads,
        queues=queues_of(queue) if queue else None,
        resources=resources,
        labels=label or None,
        health_listen=health_listen,
        imports=imports or None,
    )
    if reload and drain:
        raise OptionError("--reload and --drain are mutually exclusive; give one of them")
    if processes is not None or reload:
        if reload:  # the app is not loaded here: an error in it is fixed by the next change
            settings = load({}).changed(given, "command line")
            check_port(settings, processes or 1)
        else:
            engine, settings = _check(found[0], given)
            check_port(settings, processes or 1)
            warn_about_shared_machine(engine, settings, processes or 1)
        arguments = [
            found[0],
            *_as_arguments(given),
            "--log-level",
            log_level,
            "--log-tasks",
            log_tasks,
            "--log-format",
            log_format,
            *(["--drain"] if drain else []),
        ]
        from synergon.cli.supervisor import supervise  # with the node, as below: `--help` needs neither

        raise typer.Exit(
            supervise(
                arguments,
                processes or 1,
                log_level,
                log_format,
                name=name,
                health_listen=settings.health_listen or health_listen,
                drain=drain,
                reload=reload,
            )
        )
    report_start = connect_to_supervisor(supervisor_fd) if supervisor_fd is not None else None
    _run(found[0], given, log_level, log_format, log_tasks, drain=drain, on_start=report_start)


def _given(texts: Mapping[str, str | None], **values: Any) -> dict[str, Any]:
    """The settings that were given on the command line, by name."""
    given = {name: from_text(name, text, f"--{name}") for name, text in texts.items() if text is not None}
    return given | {name: value for name, value in values.items() if value is not None}


def _as_arguments(given: Mapping[str, Any]) -> Iterable[str]:
    """The settings as arguments for a worker process. `name` and `health_listen` are left out, because each process
    gets its own."""
    for name, value in given.items():
        if name in ("queues", "labels", "imports"):
            items = queue_words(value) if name == "queues" else value
            yield from (f"--{name.removesuffix('s')}={item}" for item in items)
        elif name not in ("name", "health_listen"):
            yield f"--{name}={'none' if value is None else value}"


def _check(app: str, given: Mapping[str, Any]) -> tuple[Engine, Settings]:
    engine = load_engine(app, given.get("imports", ()))
    require_shared_store(engine, "a worker")
    if not engine.kinds:
        raise ConfigurationError(
            f"{app} has no tasks; name the modules that define them: Engine(imports=[...]), or --import MODULE"
        )
    return engine, engine.settings.changed(given, "command line")


def check_port(settings: Settings, processes: int) -> None:
    """Raise OptionError if several processes would have to listen on one fixed port for peers, or if there are not
    enough ports for their probes."""
    health_listen = settings.health_listen
    if processes > 1 and health_listen is not None and int(health_listen.rpartition(":")[2]) + processes > LAST_PORT:
        raise OptionError(
            f"{processes} processes need as many ports after health_listen={health_listen}; the last port is "
            f"{LAST_PORT}; choose a lower one"
        )
    if processes > 1 and settings.listen not in (None, AUTO) and not settings.listen.endswith(":0"):
        host = settings.listen.rpartition(":")[0]
        raise OptionError(
            f"{processes} processes cannot share listen={settings.listen} ({settings.sources['listen']}); "
            f"use {host}:0, which gives each a free port"
        )


def warn_about_shared_machine(engine: Engine, settings: Settings, processes: int) -> None:
    """Log a warning if several nodes would each count all resources of the machine as their own."""
    is_default = settings.sources["resources"] == "default"
    if processes > 1 and is_default and any(task_type.requirements.cost for task_type in engine.kinds.values()):
        logger.warning(
            "each of the %d processes counts all resources of the machine as its own; "
            "give each a share, like --resources cpu=1",
            processes,
        )


def _run(
    app: str,
    given: Mapping[str, Any],
    level: logs.Level,
    log_format: logs.Format,
    log_tasks: logs.TaskLines,
    *,
    drain: bool,
    on_start: Callable[[], None] | None,
) -> None:
    from synergon.worker import run_until_stopped

    engine, settings = _check(app, given)
    logs.configure(level, settings.name, log_format)
    logs.log_tasks(engine, log_tasks, settings.name)
    _log_start(app, engine, settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        node = engine.worker(drain=drain, **given)
        node.on_start = on_start or node.on_start
        code = runner.run(run_until_stopped(node))
    raise typer.Exit(code)


def _log_start(app: str, engine: Engine, settings: Settings) -> None:
    queues = settings.queues
    logger.info(
        "%s: store %s, %s (%s), queues %s, concurrency %d, threads %d",
        app,
        shown(settings.url),
        plural(len(engine.kinds), "kind"),
        ", ".join(sorted(engine.kinds)),
        ", ".join(queue_words(queues)) if queues is not None else "all",
        settings.concurrency,
        settings.threads,
    )
    for problem, advice in unknown_variables():
        logger.warning("%s; %s", problem, advice)
    known = {task_type.policy.queue for task_type in engine.kinds.values()}
    for queue in set(queues or ()) - known:
        logger.warning("no task in %s uses queue %r by default; typo?", app, queue)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop's event loops. None if uvloop is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
