"""`make measure`: what it counts, and that its walk of a task is one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tools.measure import SOURCE, callable_names, callables_by_class, casts_of_self, gerunds, walk_of_a_task

SAMPLE = ast.parse(
    """
Deliver = Callable[[bytes], None]
Later = Deliver | None
Names = dict[str, int]

class Register(Protocol):
    def __call__(self, name: str) -> None: ...

class Part:
    def __init__(self, store: Store, names: Names, *, on_end: Callable[[], None], deliver: Later = None) -> None: ...

class Other:
    def __init__(self, register: Register) -> None:
        self.whole = cast("Whole", self)
        self.names = cast("Names", register)

class Plain:
    def run(self, body: Callable[[], None]) -> None: ...
"""
)


def test_callables_given_to_constructors_are_counted_by_class() -> None:
    assert callables_by_class([SAMPLE], callable_names([SAMPLE])) == {"Part": 2, "Other": 1}
    assert callables_by_class([SAMPLE], {"Callable"}) == {"Part": 1}


def test_only_casts_of_self_count() -> None:
    assert casts_of_self([SAMPLE]) == {"Other": 1}


def test_a_gerund_is_found_in_any_word_of_a_module_and_nouns_are_not_gerunds() -> None:
    names = ["claiming.py", "closing_up.py", "early_warning.py", "completer.py", "testing/clock.py"]
    assert gerunds(map(Path, names)) == ["claiming", "closing_up"]


async def test_the_walk_of_a_task_enters_what_every_task_needs(tmp_path: Path) -> None:
    walk = await walk_of_a_task(tmp_path)
    entered = {Path(file).relative_to(SOURCE).as_posix() for file in walk.files}
    assert entered.issuperset(("call.py", "handle.py", "node/claims/scheduler.py", "node/attempts/runner.py"))
    assert "stores/sqlite/transaction.py" in entered, "only the threads of the store enter it"
    # 35 decide, store and run; one counts.
    assert len(entered) <= 36, "a plain task meets more of the code than a reader can follow"
    assert len(walk.files) <= len(walk.calls) <= walk.calls.total()


def test_the_script_prints_a_table_and_the_files_of_the_walk() -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tools.measure", "--walk"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    table, _, files = ended.stdout.partition("\n\n")
    figures = dict(re.findall(r"^(\S.*?) {2,}([\d,]+)", table, re.MULTILINE))
    assert {"source lines", "casts of self", "walk of a plain task: files"} <= figures.keys()
    assert int(figures["source lines"].replace(",", "")) > 10_000
    assert "node/attempts/runner.py\n    Runner." in files
