"""Runs programs of the documentation, each in a folder and an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT

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
    """A warm interpreter in a process of its own, started when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process: subprocess.Popen[str] | None = None

    def run(self, programs: Sequence[Program]) -> list[Ended]:
        """Run all of them, several at once."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        prepared = [self._prepare(program) for program in programs]
        request = {"parallel": PARALLEL, "seconds": SECONDS, "programs": prepared}
        process.stdin.write(f"{json.dumps(request)}\n")
        process.stdin.flush()
        return [Ended(**answer) for answer in json.loads(process.stdout.readline())]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def _prepare(self, program: Program) -> dict[str, object]:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        for name, text in program.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return {
            "folder": str(folder),
            "script": program.script,
            "imported": program.imported,
            "environment": program.environment,
        }

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(ROOT / "tests/docs/warm_interpreter.py")],
            env={name: value for name, value in os.environ.items() if not name.startswith("SYNERGON_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
