"""`manage.py synergon_worker`: `synergon worker` for the tasks of the installed apps, with its options."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import typer.main
from django.core.management.base import BaseCommand, CommandParser

from synergon.cli.main import app, run

APP: Final = "synergon.contrib.django.project:engine"


class Command(BaseCommand):
    """Runs tasks."""

    help = "Runs the tasks of the installed apps. The options are those of `synergon worker`."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of `synergon worker`."""
        for option in _options():
            how: dict[str, Any] = {"dest": option.name, "help": option.help.replace("%", "%%")}
            if option.is_flag:
                how |= {"action": "store_true"}
            else:
                how |= {"action": "append" if option.multiple else "store", "metavar": option.metavar}
            parser.add_argument(*option.opts, default=argparse.SUPPRESS, **how)

    def handle(self, *_: Any, **given: Any) -> None:
        """Run the worker, and exit with its code if that is not 0."""
        _let_processes_find_project()
        code = run(["worker", APP, *_as_arguments(given)])
        if code:
            sys.exit(code)


def _options() -> Iterator[Any]:
    command: Any = typer.main.get_command(app)
    for parameter in command.commands["worker"].params:
        if parameter.param_type_name == "option" and not parameter.hidden and parameter.name != "help":
            yield parameter


def _as_arguments(given: dict[str, Any]) -> Iterator[str]:
    for option in _options():
        value = given.get(option.name)
        if option.is_flag:
            yield from [option.opts[0]] if value else []
        elif value is not None:
            values = value if option.multiple else [value]
            yield from (f"{option.opts[0]}={one}" for one in values)


def _let_processes_find_project() -> None:
    """Let the processes of `--processes` import what `manage.py` can import: its folder need not be the current one."""
    known = os.environ.get("PYTHONPATH", "")
    if sys.path[0] not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], known]))
