"""Loads the engine that `module:attribute` names. Errors suggest what may have been meant."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from synergon.cli.output import is_debugging
from synergon.engine import Engine
from synergon.errors import ConfigurationError
from synergon.options.json_types import with_article
from synergon.options.settings import is_module_name

DEFAULT_ATTRIBUTE = "engine"


def load_engine(reference: str, imports: Iterable[str] = ()) -> Engine:
    """Import the module, with the current folder on the path, and return the engine in it. Also imports the modules in
    the engine's setting `imports`, and those in `imports`."""
    module_name, _, attribute = reference.partition(":")
    if module_name.endswith(".py") or not is_module_name(module_name):
        raise ConfigurationError(f"an app is written module:attribute, got {reference!r}{_as_module(module_name)}")
    module = _import(module_name)
    engine = _engine_in(module, attribute or DEFAULT_ATTRIBUTE)
    for name in (*engine.settings.imports, *imports):
        _import(name)
    return engine


def _as_module(name: str) -> str:
    path = Path(name)
    if path.suffix != ".py" or path.is_absolute():
        return ""
    return f"; did you mean {'.'.join(path.with_suffix('').parts)}?"


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error  # the module exists; a module that it imports does not
        raise ConfigurationError(
            f"there is no module {error.name!r} in {folder} or on Python's path{_similar_module(name)}"
        ) from error
    except (Exception, SystemExit) as error:  # a script that was meant to be run, not imported
        raise _broken(name, error) from error


def _similar_module(name: str) -> str:
    parent, _, last = name.rpartition(".")
    if parent and Path(*parent.split(".")).with_suffix(".py").exists():
        return f"; did you mean {parent}:{last}?"
    return _did_you_mean(name, (path.stem for path in Path.cwd().glob("*.py")))


def _broken(name: str, error: BaseException) -> ConfigurationError:
    advice = "" if is_debugging() else " (SYNERGON_DEBUG=1 shows the traceback)"
    return ConfigurationError(f"{name} cannot be imported: {_where(error)}{type(error).__name__}: {error}{advice}")


def _where(error: BaseException) -> str:
    """The file and line of the innermost frame that is in the user's own files, as a prefix for a message. Empty if
    there is none."""
    folder = Path.cwd()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(folder) and "site-packages" not in path.parts and path.exists():
            return f"{path.relative_to(folder)}, line {frame.lineno}: "
    return ""


def _engine_in(module: ModuleType, attribute: str) -> Engine:
    engines = [name for name, value in vars(module).items() if isinstance(value, Engine)]
    try:
        found = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise ConfigurationError(
            f"{module.__name__} has no attribute {attribute!r}{_engines_there(attribute, engines)}"
        ) from error
    if not isinstance(found, Engine):
        raise ConfigurationError(
            f"{module.__name__}:{attribute} is {with_article(type(found).__name__)}, not an Engine"
            f"{_engines_there(attribute, engines)}"
        )
    return found


def _engines_there(wanted: str, engines: list[str]) -> str:
    if not engines:
        return "; there is no Engine in it"
    return _did_you_mean(wanted, engines) or f"; the engines in it: {', '.join(engines)}"


def _did_you_mean(wanted: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(wanted, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
