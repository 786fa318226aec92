"""The settings of an engine. Each has a default and an environment variable, and `sources` records where its value came
from.

Arguments in code take precedence over the environment, then `[tool.synergon]` in pyproject.toml, then the default. The
command line takes precedence over all of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from synergon.errors import ConfigurationError, OptionError
from synergon.options.durations import seconds
from synergon.options.options import check_count, check_name, check_timeout
from synergon.options.requirement_options import check_labels
from synergon.options.sizes import size_bytes
from synergon.options.store_urls import check_url, shown
from synergon.policies import DEFAULT_TIMEOUT_SECONDS, Resources, Retention

UNSET: Final[Any] = object()
"""The value was not given, so a source with lower precedence applies."""

AUTO: Final = "auto"
"""The value is chosen according to the store."""

MOST_CONCURRENT: Final = 100_000
"""More tasks than one process can run at once. A larger number is rejected as a mistake."""

_pyproject: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an engine, checked, with the source of each value."""

    url: str = "sqlite:///synergon.db"
    name: str = ""
    concurrency: int = 500
    """How many tasks may run at once."""
    threads: int = 64
    """How many task functions may run in threads at once."""
    queues: Mapping[str, int | None] | None = None
    """The queues that the node serves, and how many tasks of each may run there at once (None means no bound); None
    means every queue."""
    timeout: float | None = DEFAULT_TIMEOUT_SECONDS
    lease: float = 30.0
    sweep: float | None = None
    grace: float | None = 30.0
    retention: Retention = field(default_factory=Retention)
    child_processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    """How many task functions may run in child processes at once."""
    child_tasks: int = 10_000
    """After how many attempts a child process is replaced."""
    child_memory: int | None = None
    """The resident memory in bytes above which a child process is replaced after an attempt. None means never."""
    resources: Resources = field(default_factory=Resources)
    """The resources of the node. Those that are not given are detected."""
    labels: frozenset[str] = frozenset()
    """The labels of the node, which tasks may need or forbid."""
    listen: str | None = AUTO
    """Where to listen for peers, as `host:port`. None means not at all."""
    advertise: str | None = None
    """The address that peers send to. None means the one on which the engine listens."""
    health_listen: str | None = None
    """Where a worker answers probes and scrapes, as `host:port`. None means nowhere."""
    imports: tuple[str, ...] = ()
    """The modules that a worker imports before it starts, because they register kinds."""
    sources: Mapping[str, str]

    def __repr__(self) -> str:
        """All values. The URL is without passwords."""
        values = {each.name: getattr(self, each.name) for each in fields(self)} | {"url": shown(self.url)}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @property
    def queue_names(self) -> frozenset[str] | None:
        """The queues that the node serves; None means every queue."""
        return None if self.queues is None else frozenset(self.queues)

    def changed(self, given: Mapping[str, Any], source: str) -> Settings:
        """A copy with these values, which are checked. UNSET values are ignored."""
        values = {name: _CHECKS[name](value) for name, value in given.items() if value is not UNSET}
        return replace(self, **values, sources={**self.sources, **dict.fromkeys(values, source)})


def use_pyproject(path: Path | None) -> None:
    """Make engines that are created later read this file. The command line calls this before it imports an app.

    Nothing else reads the file: a library does not look for configuration files by itself.
    """
    global _pyproject
    _pyproject = path


def load(given: Mapping[str, Any], *, pyproject: Path | None = None) -> Settings:
    """Combine defaults, pyproject.toml, the environment and the arguments given in code."""
    settings = Settings(name=f"{socket.gethostname()}-{os.getpid()}", sources=dict.fromkeys(_CHECKS, "default"))
    pyproject = pyproject or _pyproject
    if pyproject is not None:
        table = read_pyproject(pyproject)
        with _naming(str(pyproject)):
            settings = settings.changed({name: table[name] for name in table if name != "app"}, str(pyproject))
    for name in _CHECKS:
        variable = f"SYNERGON_{name.upper()}"
        if os.environ.get(variable):
            with _naming(f"${variable}"):
                settings = settings.changed({name: from_text(name, os.environ[variable], variable)}, f"${variable}")
    return settings.changed(given, "code")


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Add the source of a value to the error about that value."""
    try:
        yield
    except (ConfigurationError, TypeError) as error:
        said = str(error)
        raise OptionError(said if said.startswith(source) else f"{source}: {said}") from error


def read_pyproject(path: Path) -> dict[str, Any]:
    """Read `[tool.synergon]`: settings, and `app` for the command line. TOML has no null, so "none" means None."""
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("synergon", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error
    for name in table:
        if name not in _CHECKS and name != "app":
            raise OptionError(f"[tool.synergon] in {path} has no setting {name!r}; it takes app, {', '.join(_CHECKS)}")
    return {name: None if _is_none(name, value) else value for name, value in table.items()}


def _is_none(name: str, value: Any) -> bool:
    return name in ("timeout", "grace", "child_memory") and isinstance(value, str) and value.lower() == "none"


def from_text(name: str, text: str, variable: str) -> Any:
    """Parse a setting that was given as text in an environment variable."""
    if _is_none(name, text):
        return None
    if name in ("concurrency", "threads", "child_processes", "child_tasks"):
        if not text.isdecimal():
            raise OptionError(f"${variable} must be a whole number, got {text!r}")
        return int(text)
    if name == "queues":
        return queues_of(text.split(","))
    if name in ("labels", "imports"):
        return [word.strip() for word in text.split(",")]
    if name == "resources":
        return _resources_of(text)
    if name == "retention":
        return Retention(succeeded=text, failed=text, cancelled=text)
    return text


def queues_of(words: Iterable[str]) -> dict[str, int | None]:
    """Parse queues as in the environment and on the command line: `mail`, or `mail=10` for at most ten at once."""
    found: dict[str, int | None] = {}
    for word in words:
        name, separator, number = (part.strip() for part in word.partition("="))
        if name in found or (separator and not number.isdecimal()):
            raise OptionError(f'queues are written like "mail", or "mail=10" for at most ten at once, got {word!r}')
        found[name] = int(number) if separator else None
    return found


def queue_words(queues: Mapping[str, int | None]) -> list[str]:
    """The queues as `queues_of` reads them, sorted."""
    return [name if bound is None else f"{name}={bound}" for name, bound in sorted(queues.items())]


def _check_queues(value: Any) -> dict[str, int | None] | None:
    if value is None:
        return None
    names = [] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not names or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"queues must be a list of names, or a dict of names and how many may run at once, got {value!r}; "
            "None serves every queue"
        )
    bounds = value if isinstance(value, Mapping) else dict.fromkeys(names)
    return {check_name(name, "queue"): _check_queue_bound(name, bounds[name]) for name in names}


def _check_queue_bound(name: str, value: Any) -> int | None:
    return None if value is None else check_at_once(value, f"the bound of queue {name!r}")


def check_at_once(value: Any, what: str) -> int:
    """Check how many tasks may run at once on a node."""
    count = check_count(value, what)
    if count > MOST_CONCURRENT:
        raise OptionError(f"{what} must be at most {MOST_CONCURRENT}, got {value!r}; start more workers instead")
    return count


def _check_lease(value: Any) -> float:
    lease = seconds(value, "lease")
    if not 0.5 <= lease <= 3600:
        raise OptionError(f"lease must be between half a second and an hour, got {value!r}")
    return lease


def _check_sweep(value: Any) -> float | None:
    return None if value is None else seconds(value, "sweep", positive=True)


def _check_grace(value: Any) -> float | None:
    return None if value is None else seconds(value, "grace")


def _check_retention(value: Any) -> Retention:
    if isinstance(value, Mapping):
        return Retention(**value)
    if not isinstance(value, Retention):
        raise OptionError(f"retention must be a Retention, got {value!r}")
    return value


def _check_resources(value: Any) -> Resources:
    if isinstance(value, str):
        return _resources_of(value)
    if isinstance(value, Mapping):
        return _resources_from(value)
    if not isinstance(value, Resources):
        raise OptionError(f"resources must be Resources, like Resources(cpu=8, ram='16GiB'), got {value!r}")
    return value


def _resources_of(text: str) -> Resources:
    """Parse resources as in the environment: `cpu=8, ram=16GiB, license=2`."""
    amounts: dict[str, Any] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, separator, amount = (part.strip() for part in word.partition("="))
        if not separator or not amount or name in amounts:
            raise OptionError(f'resources are written like "cpu=8, ram=16GiB, license=2", got {text!r}')
        amounts[name] = amount if name == "ram" else _number(name, amount)
    return _resources_from(amounts)


def _resources_from(amounts: Mapping[Any, Any]) -> Resources:
    """Parse resources as in pyproject.toml. All names except `cpu`, `ram` and `gpu` are custom resources."""
    usual = {name: amounts[name] for name in ("cpu", "ram", "gpu") if name in amounts}
    custom = {name: amount for name, amount in amounts.items() if name not in usual}
    return Resources(**usual, custom=custom)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"resources: {name} must be a number, got {text!r}") from None


def _check_listen(value: Any) -> str | None:
    if value is None or value == "off":
        return None
    if value != AUTO and not _is_host_and_port(value):
        raise OptionError(f'listen must be like "0.0.0.0:7700", port 0 for any free one, or "off", got {value!r}')
    return str(value)


def _check_health_listen(value: Any) -> str | None:
    if value is None or value == "off":
        return None
    if not _is_host_and_port(value):
        raise OptionError(
            f'health_listen must be like "127.0.0.1:9090", port 0 for any free one, or "off", got {value!r}'
        )
    return str(value)


def _is_host_and_port(value: Any) -> bool:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return bool(host) and not set("/@ ").intersection(host) and port.isdecimal() and int(port) <= 65535


def _check_advertise(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and "@" in value:  # not shown: a password may be in it
        raise OptionError(
            "advertise must be an address like http://10.0.0.5:7700; it has no user and no password, because all "
            "who can read the database see it, and messages are signed with a secret of its own"
        )
    if not isinstance(value, str) or not _is_address(value):
        raise OptionError(
            f"advertise must be an address like http://10.0.0.5:7700, without anything behind its path, got {value!r}"
        )
    return value


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port
        return False
    return is_address and not set("?# ").intersection(text)


def _check_imports(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    if not is_list or not all(isinstance(name, str) and is_module_name(name) for name in value):
        raise OptionError(f'imports must be a list of modules, like ["shop.mail", "shop.images"], got {value!r}')
    return tuple(value)


def is_module_name(text: str) -> bool:
    """Whether the text can be the name of a module, like `shop.mail`."""
    return all(part.isidentifier() for part in text.split("."))


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "url": check_url,
    "name": lambda value: check_name(value, "name"),
    "concurrency": lambda value: check_at_once(value, "concurrency"),
    "threads": lambda value: check_at_once(value, "threads"),
    "queues": _check_queues,
    "timeout": check_timeout,
    "lease": _check_lease,
    "sweep": _check_sweep,
    "grace": _check_grace,
    "retention": _check_retention,
    "child_processes": lambda value: check_at_once(value, "child_processes"),
    "child_tasks": lambda value: check_count(value, "child_tasks"),
    "resources": _check_resources,
    "labels": lambda value: check_labels(value, "labels"),
    "listen": _check_listen,
    "advertise": _check_advertise,
    "health_listen": _check_health_listen,
    "imports": _check_imports,
    "child_memory": lambda value: None if value is None else size_bytes(value, "child_memory"),
}
