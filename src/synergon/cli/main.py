"""The entry point of the command line. It builds the tree of commands, and converts each error to one line and an exit
code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from synergon.cli import (
    api,
    audit,
    doctor,
    exit_codes,
    flows,
    health,
    limits,
    migrate,
    nodes,
    prune,
    queues,
    schedules,
    servers,
    stats,
    status,
    tasks,
    top,
    worker,
)
from synergon.cli.database import JsonOption
from synergon.cli.examples import add_examples
from synergon.cli.output import is_debugging, print_error, print_line, print_lines, print_traceback
from synergon.cli.watch import WatchCommand
from synergon.errors import SynergonError

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer's class of usage errors. Typer does not export it, and its module depends on Typer's version."""

COMMAND_ORDER: Final = (
    "worker",
    "status",
    "top",
    "stats",
    "tasks",
    "queues",
    "schedules",
    "flows",
    "limits",
    "servers",
    "nodes",
    "audit",
    "prune",
    "dashboard",
    "api",
    "credentials",
    "health",
    "doctor",
    "migrate",
    "demo",
    "bench",
)


class OrderedGroup(TyperGroup):
    """Lists the commands in the order in which users need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of COMMAND_ORDER; others follow."""
        positions = {name: position for position, name in enumerate(COMMAND_ORDER)}
        return sorted(super().list_commands(ctx), key=lambda name: positions.get(name, len(positions)))


app: Final = typer.Typer(
    cls=OrderedGroup,
    name="synergon",
    help="A durable task engine: one file to start with, one database to share.",
    epilog=exit_codes.MEANINGS,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(epilog=exit_codes.MEANINGS)(worker.worker)
app.add_typer(tasks.commands, name="tasks", epilog=exit_codes.MEANINGS)
app.add_typer(queues.commands, name="queues", epilog=exit_codes.MEANINGS)
app.add_typer(schedules.commands, name="schedules", epilog=exit_codes.MEANINGS)
app.add_typer(flows.commands, name="flows", epilog=exit_codes.MEANINGS)
app.add_typer(limits.commands, name="limits", epilog=exit_codes.MEANINGS)
app.add_typer(servers.commands, name="servers", epilog=exit_codes.MEANINGS)
app.add_typer(nodes.commands, name="nodes", epilog=exit_codes.MEANINGS)
app.command(epilog=exit_codes.MEANINGS)(status.status)
app.command(epilog=exit_codes.MEANINGS)(top.top)
app.command(epilog=exit_codes.MEANINGS)(stats.stats)
app.command(epilog=exit_codes.MEANINGS, cls=WatchCommand)(audit.audit)
app.command(epilog=exit_codes.MEANINGS)(prune.prune)
app.command(epilog=exit_codes.MEANINGS)(api.dashboard)
app.command(epilog=exit_codes.MEANINGS)(api.api)
app.add_typer(api.credentials_commands, name="credentials", epilog=exit_codes.MEANINGS)
app.command(epilog=exit_codes.MEANINGS)(health.health)
app.command(epilog=exit_codes.MEANINGS)(doctor.doctor)
app.command(epilog=exit_codes.MEANINGS)(migrate.migrate)


@app.command()
def demo() -> None:
    """Show what it does, in fifteen seconds."""
    from synergon.demo.run import main  # slow to load

    main()


@app.command()
def bench(
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store to measure. Default: a new SQLite file in the current folder."),
    ] = None,
    tasks: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Number of tasks.")] = 20_000,
    as_json: JsonOption = False,
) -> None:
    """Measure a store on this machine."""
    from synergon.cli.bench import main  # slow to load

    main(url, tasks, as_json)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version  # slow to load

        print_line(f"synergon {version('synergon')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that come before every command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def command_tree() -> Any:
    """All commands, with an example in the help of each."""
    return add_examples(typer.main.get_command(app))


def run(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code. Every error is printed as one line on stderr."""
    try:
        code = command_tree().main(list(arguments), prog_name="synergon", standalone_mode=False)
    except UsageError as error:
        return _report_usage(error)
    except SynergonError as error:
        return _report(error, str(error), exit_codes.code_of(error))
    except (KeyboardInterrupt, typer.Abort):
        return exit_codes.INTERRUPTED
    except Exception as error:  # noqa: BLE001  every error is one line, not a traceback
        advice = "" if is_debugging() else " (SYNERGON_DEBUG=1 shows the traceback)"
        return _report(error, f"{type(error).__name__}: {error}{advice}", exit_codes.FAILED)
    return code if isinstance(code, int) else exit_codes.OK


def _report(error: BaseException, message: str, code: int) -> int:
    if is_debugging():
        print_traceback(error)
    print_error(" ".join(message.split()))
    return code


def _report_usage(error: Exception) -> int:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command; its message is the help
        print_lines(message)
        return exit_codes.USAGE
    if getattr(error, "option_name", "")[1:].isdigit():  # a negative number is parsed as an option
        message = "a number here must be a whole number from 0 on, not a negative one"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "synergon"
    return _report(error, f"{message.rstrip('.').replace('Value error, ', '')} (see `{path} --help`)", exit_codes.USAGE)
