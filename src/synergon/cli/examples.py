"""An example for every command. `--help` shows it below the options."""

from __future__ import annotations

from typing import Any, Final

EXAMPLES: Final = {
    "worker": ("worker app:engine --concurrency 100 --queue mail --queue default",),
    "top": ("top --app app:engine --interval 1",),
    "status": ("status --app app:engine",),
    "stats": ("stats --kind send_mail --since 24h --app app:engine",),
    "tasks list": (
        "tasks list --state failed --since 2h --app app:engine",
        "tasks list --state running --watch --app app:engine",
    ),
    "tasks show": ("tasks show 42 --app app:engine",),
    "tasks explain": ("tasks explain 42 --app app:engine",),
    "tasks retry": ("tasks retry 42 --app app:engine", "tasks retry --all --kind send_mail --app app:engine"),
    "tasks cancel": ('tasks cancel --all --queue mail --why "wrong template" --app app:engine',),
    "tasks delete": ("tasks delete --all --state cancelled --dry-run --app app:engine",),
    "tasks reschedule": ("tasks reschedule 42 --delay 10m --app app:engine",),
    "tasks priority": ("tasks priority 42 --to 100 --app app:engine",),
    "queues list": ("queues list --watch 5 --app app:engine",),
    "queues pause": ("queues pause mail --app app:engine",),
    "queues resume": ("queues resume mail --app app:engine",),
    "schedules list": ("schedules list --app app:engine",),
    "schedules show": ("schedules show nightly_report --app app:engine",),
    "schedules next": ("schedules next --number 5 --app app:engine",),
    "schedules pause": ("schedules pause nightly_report --app app:engine",),
    "schedules resume": ("schedules resume nightly_report --app app:engine",),
    "schedules update": ('schedules update customer-42 --cron "0 4 * * *" --tz Europe/Berlin',),
    "schedules delete": ("schedules delete nightly_report --app app:engine",),
    "schedules run": ("schedules run nightly_report --app app:engine",),
    "flows list": ("flows list --state open --watch --app app:engine",),
    "flows show": ("flows show 7 --app app:engine",),
    "limits list": ("limits list --app app:engine",),
    "limits set": ("limits set license 5 --app app:engine", "limits set mail --rate 600/1m --app app:engine"),
    "servers list": ("servers list --watch --app app:engine",),
    "servers add": ("servers add http://gpu3:8000=4 --provider gpu --app app:engine",),
    "servers close": ("servers close http://gpu3:8000 --provider gpu --app app:engine",),
    "servers remove": ("servers remove http://gpu3:8000 --provider gpu --app app:engine",),
    "servers set": ("servers set gpu http://gpu1:8000=4 http://gpu2:8000=4 --app app:engine",),
    "nodes list": ("nodes list --watch --app app:engine",),
    "nodes cordon": ("nodes cordon worker-3 --app app:engine",),
    "nodes uncordon": ("nodes uncordon worker-3 --app app:engine",),
    "nodes drain": ("nodes drain worker-3 --app app:engine",),
    "nodes restart": ("nodes restart worker-3 --app app:engine",),
    "nodes stop": ("nodes stop worker-3 --app app:engine",),
    "audit": ("audit --limit 10 --app app:engine",),
    "prune": ("prune --succeeded 12h --app app:engine",),
    "dashboard": ("dashboard app:engine --listen :8080 --credentials credentials.toml",),
    "api": ("api app:engine --listen :8080 --credentials credentials.toml",),
    "credentials token": ("credentials token --name deploy --role operate",),
    "credentials password": ("credentials password --name ada --role admin",),
    "health": ("health 127.0.0.1:9090",),
    "doctor": ("doctor --app app:engine",),
    "migrate": ("migrate --app app:engine",),
    "demo": ("demo",),
    "bench": ("bench --url sqlite:///bench.db --tasks 5000",),
}
"""The arguments of `synergon`, by the words of the command."""


def add_examples(command: Any, words: tuple[str, ...] = ()) -> Any:
    """Put the examples into the help of a command of Typer and of those below it. Returns the command."""
    for name, below in getattr(command, "commands", {}).items():
        add_examples(below, (*words, name))
    found = EXAMPLES.get(" ".join(words), ())
    if found:
        heading = "Example:" if len(found) == 1 else "Examples:"
        lines = "\n".join(f"  synergon {arguments}" for arguments in found)
        command.epilog = f"\b\n{heading}\n{lines}\n\n{command.epilog or ''}"
    return command
