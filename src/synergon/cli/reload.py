"""Watching the code: tells when Python files below the current folder change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from synergon.errors import ConfigurationError


def check_watchfiles() -> None:
    """Refuse `--reload` where nothing can watch."""
    try:
        import watchfiles  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("--reload needs watchfiles; pip install 'synergon[reload]'") from error


async def watch(on_change: Callable[[Sequence[str]], None]) -> None:
    """Call `on_change` with the files whenever some have changed, until cancelled. Environments, caches and version
    control are not looked at."""
    from watchfiles import PythonFilter, awatch

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # what changed is said here, and better
    folder = Path.cwd()
    async for changes in awatch(folder, watch_filter=PythonFilter()):
        on_change(sorted({str(Path(path).relative_to(folder)) for _, path in changes}))
