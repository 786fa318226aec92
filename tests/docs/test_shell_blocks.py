"""Commands in the documentation exist, with every option that is shown; those that only look are run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
from tests.docs.pages import ROOT, Block, blocks, pages
from tests.docs.programs import Program, Programs

from synergon.cli.command_groups import ListGroup
from synergon.cli.main import app
from synergon.options.settings import load

APP: Final = """
from synergon import Engine

engine = Engine("sqlite:///app.db")


@engine.task
async def work() -> None: ...
"""

READING: Final = (
    *(
        ("--version",),
        ("doctor",),
        ("status",),
        ("top",),
        ("stats",),
        ("tasks", "list"),
        ("queues", "list"),
        ("migrate", "--print-sql"),
    ),
    *(("limits", "--app"), ("servers", "--app"), ("audit",), ("schedules", "list"), ("schedules", "next")),
)

OF_DJANGO: Final = "python manage.py synergon_worker"
COMMANDS: Final = [
    (block, tuple(shlex.split(line.replace(OF_DJANGO, "synergon worker"), comments=True)[1:]))
    for page in pages()
    for block in blocks(page, "sh")
    for line in block.text.splitlines()
    if line.startswith(("synergon", OF_DJANGO))
]


def shown(value: object) -> str:
    return str(value) if isinstance(value, Block) else " ".join(map(str, value)) if isinstance(value, tuple) else ""


@pytest.mark.parametrize(("block", "arguments"), COMMANDS, ids=shown)
def test_a_command_exists_with_its_options(block: Block, arguments: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    words = list(arguments)
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        name = words.pop(0)
        assert name in command.commands, f"{block}: there is no command {name!r}"
        command = command.commands[name]
        assert not command.hidden, f"{block}: {name} is not in this release"
    if isinstance(command, ListGroup):
        command = command.commands["list"]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    used = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert used <= known, f"{block}: synergon {' '.join(arguments)} has options that do not exist: {used - known}"


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        (block, arguments)
        for block, arguments in COMMANDS
        if (arguments[:2] in READING or arguments[:1] in READING) and "--watch" not in arguments  # which does not end
    ],
    ids=shown,
)
def test_a_command_that_only_looks_runs(block: Block, arguments: tuple[str, ...], programs: Programs) -> None:
    module = arguments[arguments.index("--app") + 1].partition(":")[0] if "--app" in arguments else "app"
    found = {other.file_name: other.text for other in blocks(block.page, "python") if other.file_name is not None}
    files = {f"{module}.py": APP, **found}
    script = f"""
import os
from synergon.cli.main import run
os.environ["SYNERGON_APP"] = "{module}:engine"
assert run(["migrate"]) == 0
raise SystemExit(run({list(arguments)!r}))
"""
    settings = re.findall(r"^export (DJANGO_SETTINGS_MODULE)=(.*)$", block.text, re.MULTILINE)
    program = Program(files={**files, "first.py": script}, script="first.py", environment=dict(settings))
    (ended,) = programs.run([program])
    assert ended.code == 0, f"{block}: synergon {' '.join(arguments)} ended with {ended.code}:\n{ended.output}"


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_commands_of_the_readme_are_in_the_makefile(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shell = "".join(block.text for block in blocks("README.md", "sh"))
    assert f"make {target}" in shell
    assert f"\n{target}:" in makefile


@pytest.mark.parametrize("block", [block for page in pages() for block in blocks(page, "toml")], ids=str)
def test_settings_in_toml_are_accepted(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(block.text, encoding="utf-8")
    assert str(path) in load({}, pyproject=path).sources.values()


def test_the_commands_of_the_django_page_make_a_project_that_runs(tmp_path: Path) -> None:
    page = "docs/guides/django.md"
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines() if line.startswith("python ")]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [command[1] for command in commands[:2]] == ["django", "startapp"]
    for number, command in enumerate(commands):
        if number == 2:  # the page says to write its files now
            for block in blocks(page, "python"):
                if block.file_name is not None:
                    (tmp_path / block.file_name).write_text(block.text)
        arguments = ["--drain" if word == "--processes" else word for word in command if word != "2"]
        ended = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, f"{lines[number]}: {ended.stderr}"
    script = "from shop.models import Order; assert Order.objects.count() == 0"
    subprocess.run([sys.executable, "manage.py", "shell", "-c", script], cwd=tmp_path, timeout=60, check=True)
