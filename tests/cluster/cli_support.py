"""The command line as its users meet it: real processes in a folder of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, TextIO
from unittest.mock import patch

from tests.support import PATIENCE_SECONDS
from tests.warm_process import WarmProcess

from synergon import Engine, State
from synergon.cli.main import run

APP: Final = Path(__file__).parent / "apps" / "cli_app.py"
COMMAND: Final = (sys.executable, "-m", "synergon")


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it printed, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What it printed, which must be one JSON document per line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Started:
    """A command that runs. What it says is read all the time, so that it never has to wait for its reader."""

    def __init__(self, process: WarmProcess, lines: TextIO) -> None:
        self.process = process
        self._lines = lines
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._lines as lines:
            self._said.extend(lines)

    @property
    def text(self) -> str:
        """Everything so far."""
        return "".join(self._said)

    def until_says(self, pattern: str, *, times: int = 1) -> list[re.Match[str]]:
        """All matches, once there are so many."""
        found: list[re.Match[str]] = []

        def is_published() -> bool:
            found[:] = re.finditer(pattern, self.text)
            return len(found) >= times

        try:
            until(is_published)
        except TimeoutError:
            raise AssertionError(f"{pattern!r} was not said {times} times in:\n{self.text}") from None
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send it to this process only."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit code, once it has ended and everything was read."""
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code


@dataclass(frozen=True, slots=True)
class Shell:
    """A folder with an app in it, in which commands are given."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def in_folder(cls, folder: Path) -> Shell:
        """With the app of the tests, and an environment that says nothing about synergon."""
        shutil.copy(APP, folder / "app.py")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SYNERGON_")}
        environment |= {"COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("FORCE_COLOR", None)
        return cls(folder, environment)

    @property
    def engine(self) -> Engine:
        """A producer on the app's database."""
        return Engine(f"sqlite:///{self.folder}/app.db")

    def enqueue(self, kind: str, *, number: int = 1, **arguments: Any) -> list[int]:
        """Store tasks, as some other program would; their ids."""
        with self.engine as engine:
            return [handle.id for handle in engine.enqueue_sync([engine.call(kind, **arguments)] * number)]

    def counts(self) -> dict[State, int]:
        """How many tasks are in each state, without zeros."""
        with self.engine as engine:
            counts = engine.sync_bridge.call(engine.counts)
        return {state: number for state, number in counts.items() if number}

    def run(self, *arguments: str, **environment: str) -> Finished:
        """Give a command and wait for its end."""
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            process = self._give(arguments, environment, out.fileno(), err.fileno())
            try:
                code = process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()
            for file in (out, err):
                file.seek(0)
            return Finished(code, out.read(), err.read())

    @contextmanager
    def start(self, *arguments: str, **environment: str) -> Iterator[Started]:
        """Give a command that goes on; killed at the end of the test if it still does."""
        said, says = os.pipe()
        process = self._give(arguments, environment, says, says)
        os.close(says)
        started = Started(process, os.fdopen(said))
        try:
            yield started
        finally:
            process.kill()
            process.wait()

    def _give(self, arguments: Sequence[str], environment: Mapping[str, str], out: int, err: int) -> WarmProcess:
        with Path(os.devnull).open() as nothing:
            return WarmProcess(
                "synergon",
                *arguments,
                folder=self.folder,
                environment={**self.environment, **environment},
                streams=(nothing.fileno(), out, err),
            )


def quickly(shell: Shell, *arguments: str) -> Finished:
    """The same as `shell.run`, in this process: so many commands need no process each."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    path = list(sys.path)
    try:
        with (
            contextlib.chdir(shell.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            patch.dict(os.environ, {"COLUMNS": "80"} if "COLUMNS" in shell.environment else {}),
        ):
            code = run(arguments)
    finally:
        sys.path[:] = path
        sys.modules.pop("app", None)
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Finished(code, *texts)


def until(is_so: Callable[[], bool]) -> None:
    """Return as soon as it is so; TimeoutError if it does not come to that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is only waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
