"""The entry point: the tree of commands, and errors as one line and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from synergon.cli import audit, doctor, exit_codes, later, limits, migrate, nodes, queues, servers, tasks, worker
from synergon.cli.database import JsonOption
from synergon.cli.output import complain, is_debugging, say
from synergon.errors import NotAvailable, SynergonError

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer does not name it, and where it comes from depends on Typer's version."""

ORDER: Final = (
    "worker",
    "tasks",
    "queues",
    "limits",
    "servers",
    "nodes",
    "audit",
    "doctor",
    "migrate",
    "demo",
    "bench",
)


class InOrder(TyperGroup):
    """Lists the commands in the order in which people need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Those of `ORDER` first."""
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


app = typer.Typer(
    cls=InOrder,
    name="synergon",
    help="A durable task engine: one file to start with, one database to share.",
    epilog=exit_codes.MEANINGS,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.command(epilog=exit_codes.MEANINGS)(worker.worker)
app.add_typer(tasks.commands, name="tasks", epilog=exit_codes.MEANINGS)
app.add_typer(queues.commands, name="queues", epilog=exit_codes.MEANINGS)
app.add_typer(limits.commands, name="limits", epilog=exit_codes.MEANINGS)
app.add_typer(servers.commands, name="servers", epilog=exit_codes.MEANINGS)
app.add_typer(nodes.commands, name="nodes", epilog=exit_codes.MEANINGS)
app.command(epilog=exit_codes.MEANINGS)(audit.audit)
app.command(epilog=exit_codes.MEANINGS)(doctor.doctor)
app.command(epilog=exit_codes.MEANINGS)(migrate.migrate)


@app.command()
def demo() -> None:
    """Fifteen seconds that show what it does."""
    _part("demo").main()


@app.command()
def bench(
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The store to measure. Default: a new SQLite file here.")
    ] = None,
    tasks: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="How many tasks.")] = 20_000,
    as_json: JsonOption = False,
) -> None:
    """Measure a store on this machine."""
    _part("bench").main(url, tasks, as_json)


for name in later.NAMES:
    later.add(app, name)


def _part(name: str) -> ModuleType:
    """A command that is loaded only when it is asked for."""
    module = f"synergon.cli.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise NotAvailable(f"`synergon {name}` is not in this release of synergon") from error


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version  # slow to load

        say(f"synergon {version('synergon')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version, and end.")
    ] = False,
) -> None:
    """What comes before every command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Mistakes and troubles are one line on stderr."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="synergon", standalone_mode=False)
    except UsageError as error:
        return _refuse_usage(error)
    except SynergonError as error:
        return _report(error, str(error), exit_codes.code_of(error))
    except (KeyboardInterrupt, typer.Abort):
        return exit_codes.INTERRUPTED
    except Exception as error:  # noqa: BLE001  whatever it is, people get one line
        advice = "" if is_debugging() else " (SYNERGON_DEBUG=1 shows the traceback)"
        return _report(error, f"{type(error).__name__}: {error}{advice}", exit_codes.FAILED)
    return code if isinstance(code, int) else exit_codes.OK


def _report(error: BaseException, message: str, code: int) -> int:
    if is_debugging():
        traceback.print_exception(error)
    complain(" ".join(message.split()))
    return code


def _refuse_usage(error: Exception) -> int:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command, and the help is the message
        say(message)
        return exit_codes.USAGE
    if getattr(error, "option_name", "")[1:].isdigit():  # what begins with a dash is taken for an option
        message = "a number here is a whole number from 0 on, and may not be negative"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "synergon"
    return _report(error, f"{message.rstrip('.').replace('Value error, ', '')} (see `{path} --help`)", exit_codes.USAGE)
