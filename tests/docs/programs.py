"""Runs programs of the documentation, each in a folder and an interpreter of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from tests.warm_process import WarmProcess

SECONDS: Final = 40
PARALLEL: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Files of a folder, and which of them to run."""

    files: dict[str, str]
    script: str
    imported: bool = False
    """Import it instead of running it."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of its environment, besides those of the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended."""

    code: int
    output: str
    seconds: float


class Programs:
    """Runs programs in folders below this one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    def run(self, programs: Sequence[Program]) -> list[Ended]:
        """Run all of them, several at once."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(self._run, programs))

    def _run(self, program: Program) -> Ended:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        for name, text in program.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SYNERGON_")}
        began = time.monotonic()
        with (folder / ".output").open("w+", encoding="utf-8", errors="replace") as output:
            with Path(os.devnull).open() as nothing:
                process = WarmProcess(
                    ".".join(Path(program.script).with_suffix("").parts) if program.imported else program.script,
                    folder=folder,
                    environment=environment | program.environment,
                    streams=(nothing.fileno(), output.fileno(), output.fileno()),
                    way="import" if program.imported else "script",
                    flags=("-W", "error"),
                    own_group=True,
                )
            try:
                code = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            output.seek(0)
            return Ended(code=code, output=output.read(), seconds=round(time.monotonic() - began, 2))
