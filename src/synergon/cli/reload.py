"""The file watcher of `--reload`: reports changes of Python files below the current folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from synergon.errors import ConfigurationError


def check_watchfiles() -> None:
    """Raise ConfigurationError if the package watchfiles is not installed."""
    try:
        import watchfiles  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("--reload needs watchfiles; pip install 'synergon[reload]'") from error


async def watch(on_change: Callable[[Sequence[str]], None]) -> None:
    """Call `on_change` with the changed files, until cancelled. Virtual environments, caches and folders of version
    control are ignored."""
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # the supervisor logs the changes itself
    folder = Path.cwd()
    async for changes in awatch(folder, watch_filter=PythonFilter()):
        on_change(sorted({str(Path(path).relative_to(folder)) for _, path in changes}))
