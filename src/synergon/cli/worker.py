"""`synergon worker`: a node in this process, or several in processes of their own.

Ends with 0 when it was stopped in order or has drained. The first SIGINT or SIGTERM stops in order, the second ends at
once.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from synergon.cli import logs
from synergon.cli.apps import load_engine
from synergon.cli.database import find_app, refuse_private
from synergon.cli.output import plural
from synergon.cli.supervisor_link import hold
from synergon.cli.unknown_variables import strange_variables
from synergon.engine import Engine
from synergon.errors import ConfigurationError, OptionError
from synergon.options.settings import AUTO, Settings, from_text, load
from synergon.options.store_urls import shown

logger = logging.getLogger("synergon.cli")


def worker(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:ENGINE",
            show_default=False,
            help="What to run; `app` means app:engine. Default: $SYNERGON_APP, then `app` in pyproject.toml.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", metavar="NUMBER", help="How many tasks run at once, in each process."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="NAME", help="Serve only this queue; may be given several times."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Keep this many worker processes alive.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left to do.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a .py file below this folder changes.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The node's name, for people. Default: host and pid.")
    ] = None,
    lease: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it may be silent before others take over.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How often it looks for work that nobody told it of.")
    ] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a stop waits for running tasks; none: for ever.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="The limit of tasks that name none themselves; none: no limit."),
    ] = None,
    resources: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNTS",
            help="What each process has, like cpu=4,ram=8GiB,gpu=1,license=2. Default: what the machine has.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="LABEL", help="What tasks may need of it; may be given several times."),
    ] = None,
    log_level: Annotated[
        logs.Level,
        typer.Option(metavar="LEVEL", envvar="SYNERGON_LOG_LEVEL", help="debug, info, warning or error."),
    ] = logs.Level.INFO,
    supervisor_line: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run tasks.

    Until SIGINT or SIGTERM comes, an order (see `synergon nodes`), or, with --drain, until nothing is left to do. The
    first signal lets running tasks finish, the second ends at once. A DURATION is in seconds, or like 500ms and 10m.
    """
    found = find_app(app)
    if found is None:
        raise OptionError("which app? write `synergon worker app:engine`, or set $SYNERGON_APP")
    given = _given(
        {"name": name, "lease": lease, "sweep": sweep, "grace": grace, "timeout": timeout},
        concurrency=concurrency,
        queues=queue or None,
        resources=resources,
        labels=label or None,
    )
    if reload and drain:
        raise OptionError("--reload goes on until it is interrupted, --drain does not; give one of them")
    if processes is not None or reload:
        if reload:  # a mistake in the app is then something to wait out
            refuse_one_port(load({}), processes or 1)
        else:
            engine, settings = _check(found[0], given)
            refuse_one_port(settings, processes or 1)
            warn_of_shares(engine, settings, processes or 1)
        arguments = [found[0], *_as_arguments(given), "--log-level", log_level, *(["--drain"] if drain else [])]
        from synergon.cli.supervisor import supervise  # with the node, as below: `--help` needs neither

        raise typer.Exit(supervise(arguments, processes or 1, log_level, name=name, drain=drain, reload=reload))
    tell = hold(supervisor_line) if supervisor_line is not None else None
    _run(found[0], given, log_level, drain=drain, on_start=tell)


def _given(texts: Mapping[str, str | None], **values: Any) -> dict[str, Any]:
    """The settings that the command line changes; the rest stays as it is elsewhere."""
    given = {name: from_text(name, text, f"--{name}") for name, text in texts.items() if text is not None}
    return given | {name: value for name, value in values.items() if value is not None}


def _as_arguments(given: Mapping[str, Any]) -> Iterable[str]:
    """The same for the command line of another process; each has a name of its own, so that one is left out."""
    for name, value in given.items():
        if name in ("queues", "labels"):
            yield from (f"--{name.removesuffix('s')}={word}" for word in value)
        elif name != "name":
            yield f"--{name}={'none' if value is None else value}"


def _check(app: str, given: Mapping[str, Any]) -> tuple[Engine, Settings]:
    engine = load_engine(app)
    refuse_private(engine, "a worker")
    if not engine.kinds:
        raise ConfigurationError(f"{app} has no tasks; let it import the modules that hold them")
    return engine, engine.settings.changed(given, "command line")


def refuse_one_port(settings: Settings, processes: int) -> None:
    """Several processes cannot listen where only one can."""
    if processes > 1 and settings.listen not in (None, AUTO) and not settings.listen.endswith(":0"):
        host = settings.listen.rpartition(":")[0]
        raise OptionError(
            f"listen={settings.listen} ({settings.sources['listen']}) is a place for one process, not for {processes}; "
            f"use {host}:0, which takes any free port for each"
        )


def warn_of_shares(engine: Engine, settings: Settings, processes: int) -> None:
    """Nodes do not know of each other what they use of the machine that they are on."""
    is_found = settings.sources["resources"] == "default"
    if processes > 1 and is_found and any(task_type.requirements.cost for task_type in engine.kinds.values()):
        logger.warning(
            "each of the %d processes takes the whole machine for its own; give each its share, like --resources cpu=1",
            processes,
        )


def _run(
    app: str, given: Mapping[str, Any], level: logs.Level, *, drain: bool, on_start: Callable[[], None] | None
) -> None:
    from synergon.worker import run_until_stopped

    engine, settings = _check(app, given)
    logs.configure(level, settings.name)
    _announce(app, engine, settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        node = engine.worker(drain=drain, **given)
        node.on_start = on_start or node.on_start
        code = runner.run(run_until_stopped(node))
    raise typer.Exit(code)


def _announce(app: str, engine: Engine, settings: Settings) -> None:
    queues = sorted(settings.queues) if settings.queues is not None else None
    logger.info(
        "%s: store %s, %s (%s), queues %s, concurrency %d",
        app,
        shown(settings.url),
        plural(len(engine.kinds), "kind"),
        ", ".join(sorted(engine.kinds)),
        ", ".join(queues) if queues is not None else "all",
        settings.concurrency,
    )
    for problem, advice in strange_variables():
        logger.warning("%s; %s", problem, advice)
    known = {task_type.policy.queue for task_type in engine.kinds.values()}
    for queue in set(queues or ()) - known:
        logger.warning("no task of %s goes to the queue %r by itself; is it misspelt?", app, queue)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
