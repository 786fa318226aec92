"""The filters of `synergon tasks`: one list of options for all its commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
import typer

from synergon.cli import completion
from synergon.errors import OptionError
from synergon.model.lifecycle import State
from synergon.options.durations import seconds

_TIME: Final = "like 2026-12-24T18:00+01:00, or 2h for two hours ago"


def _moment_option(flags: str, words: str) -> Any:
    return Annotated[str | None, typer.Option(*flags.split(), metavar="TIME", help=f"Only tasks {words}, {_TIME}.")]


FILTERS: Final[dict[str, Any]] = {
    "state": Annotated[
        list[State] | None,
        typer.Option(
            "--state", metavar="STATE", help=f"Only tasks in this state; repeatable. One of {', '.join(State)}."
        ),
    ],
    "kind": Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="NAME", help="Only tasks of this kind; repeatable.", autocompletion=completion.kinds
        ),
    ],
    "queue": Annotated[
        str | None,
        typer.Option("--queue", metavar="NAME", help="Only tasks of this queue.", autocompletion=completion.queues),
    ],
    "tag": Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only tasks with this tag.")],
    "key": Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only tasks with this unique key.")],
    "title": Annotated[
        str | None,
        typer.Option("--title", metavar="TEXT", help="Only tasks whose title contains this text, in any case."),
    ],
    "meta": Annotated[
        list[str] | None,
        typer.Option("--meta", metavar="NAME=VALUE", help="Only tasks with this value in their meta; repeatable."),
    ],
    "search": Annotated[
        str | None,
        typer.Option("--search", metavar="TEXT", help="Only tasks with this text in their arguments or errors."),
    ],
    "flow": Annotated[int | None, typer.Option("--flow", metavar="ID", help="Only tasks of this flow or group.")],
    "parent": Annotated[
        int | None, typer.Option("--parent", metavar="ID", help="Only tasks that this task has created.")
    ],
    "node": Annotated[
        list[str] | None,
        typer.Option("--node", metavar="ID", help="Only tasks whose last attempt is of this node; repeatable."),
    ],
    "enqueued_since": _moment_option("--since", "enqueued at or after this time"),
    "enqueued_until": _moment_option("--until", "enqueued before this time"),
    "started_since": _moment_option("--started-since", "started at or after this time"),
    "started_until": _moment_option("--started-until", "started before this time"),
    "finished_since": _moment_option("--finished-since", "that ended at or after this time"),
    "finished_until": _moment_option("--finished-until --before", "that ended before this time"),
}
"""The options, by the names of `engine.tasks(...)`."""


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the options of `FILTERS`. Its parameter `filters` gets those that were given, as
    `engine.tasks(...)` takes them."""

    def run(**given: Any) -> None:
        filters = {name: given.pop(name) for name in FILTERS}
        command(filters=filters_of(filters), **given)

    options: list[inspect.Parameter] = []
    for option in inspect.signature(command, eval_str=True).parameters.values():
        if option.name != "filters":
            options.append(option.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        options += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in FILTERS.items()
        ]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def filters_of(given: dict[str, Any]) -> dict[str, Any]:
    """The filters for `engine.tasks(...)`, from what was given on the command line."""
    found = {name: value for name, value in given.items() if value not in (None, [])}
    if "meta" in found:
        found["meta"] = dict(_meta(word) for word in found["meta"])
    return {
        name: _moment(name, value) if name.endswith(("_since", "_until")) else value for name, value in found.items()
    }


def _meta(word: str) -> tuple[str, Any]:
    name, sign, text = word.partition("=")
    if not sign:
        raise OptionError(f"--meta takes NAME=VALUE, like customer=42, got {word!r}")
    try:
        return name, msgspec.json.decode(text)
    except msgspec.DecodeError:  # a word without quotes is a text
        return name, text


def _moment(name: str, text: str) -> datetime:
    flag = "--" + name.removeprefix("enqueued_").replace("_", "-")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - timedelta(seconds=seconds(text, flag))
        except OptionError:
            raise OptionError(f"{flag} takes a time {_TIME}, got {text!r}") from None
    return moment if moment.tzinfo is not None else moment.astimezone()
