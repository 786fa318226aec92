"""Prints the newest Python at hand, for systems that need a newer one than synergon: on the path, or one of pyenv's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MINORS: Final = (14, 13, 12)
PYENV: Final = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))


def newest_python() -> str:
    """The newest that works; at least the one that asks."""
    return next((python for python in _candidates() if _works(python)), sys.executable)


def _candidates() -> Iterator[str]:
    for minor in MINORS:
        on_path = shutil.which(f"python3.{minor}")
        if on_path is not None:
            yield on_path
        for folder in sorted(PYENV.glob(f"versions/3.{minor}.*"), reverse=True):
            yield str(folder / "bin" / "python")


def _works(python: str) -> bool:
    """Whether it can make an environment. What pyenv puts on the path may only say that no such version is chosen."""
    try:
        return subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    print(newest_python())
