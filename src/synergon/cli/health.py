"""`synergon health`: asks a running worker whether it is ready. For probes that run a command."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from typing import Annotated, Final

import msgspec
import typer

from synergon.cli.exit_codes import FAILED
from synergon.cli.output import print_error, print_line
from synergon.errors import OptionError
from synergon.options.settings import load

ANSWER_BYTES: Final = 65536
ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not bound
"""The address at which to ask a worker that listens on every interface."""


def health(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST:PORT",
            show_default=False,
            help="Where the worker answers. Default: $SYNERGON_HEALTH_LISTEN, then `health_listen` in pyproject.toml.",
        ),
    ] = None,
    alive: Annotated[
        bool, typer.Option("--alive", help="Ask only whether the process answers, not whether it is ready.")
    ] = False,
    seconds: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait.")] = 5.0,
) -> None:
    """Ask a worker whether it is ready.

    The worker must run with --health-listen or the setting `health_listen`. The exit code is 0 if it is ready, and 1
    if it is not or does not answer; then the reason is on stderr.
    """
    settings = load({} if address is None else {"health_listen": address})
    if settings.health_listen is None:
        raise OptionError("which worker? write `synergon health 127.0.0.1:9090`, or set $SYNERGON_HEALTH_LISTEN")
    problem = _ask(settings.health_listen, "/health" if alive else "/ready", seconds)
    if problem is not None:
        print_error(problem)
        raise typer.Exit(FAILED)
    print_line("alive" if alive else "ready")


def _ask(address: str, path: str, seconds: float) -> str | None:
    """The problem of the worker at this address. None if it has none."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    connection = HTTPConnection(ANY_HOST.get(host, host), int(port), timeout=seconds)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES)
    except (OSError, HTTPException) as error:
        return f"no worker answers at {address}: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    return None if answer.status == 200 else _reason(answer.status, body)


def _reason(status: int, body: bytes) -> str:
    try:
        return "not ready: " + "; ".join(msgspec.json.decode(body, type=_Answer).reasons)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"answered {status}: {body[:200].decode(errors='replace')}"


class _Answer(msgspec.Struct):
    reasons: list[str]
