"""The programs in README and docs run as they stand, each in an empty folder. None is left out.

Blocks in other languages are checked elsewhere, or their language is in the list below, with the reason why nothing
runs them.
"""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

import django
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.docs.pages import Block, blocks, pages
from tests.docs.programs import Ended, Program, Programs
from tests.postgres_server import administer, server_url

POSTGRESQL: Final = "postgresql"
BLOCKS: Final = [block for page in pages() for block in blocks(page, "python")]

CHECKED_ELSEWHERE: Final = {
    "python": "run by this module",
    "sh": "commands of synergon exist, and those that only read are run: test_shell_blocks.py",
    "toml": "loaded as settings: test_shell_blocks.py",
    "json": "read by this module",
}
NOT_RUN: Final = {
    "text": "what a program prints, or a drawing",
    "sql": "for the servers and the administrators of the reader",
    "ini": "settings of systemd and PgBouncer, which tests do not start",
    "yaml": "settings of Kubernetes, Prometheus and Patroni, which tests do not start",
}
"""The languages of blocks that nothing runs, and why."""

DJANGO_SCRIPT: Final = """
import importlib
import os

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
django.setup()
importlib.import_module("{module}")
"""


@pytest.fixture(scope="module")
def ended(programs: Programs) -> Answers:
    return Answers(programs)


class Answers:
    """How blocks ended. All of a page are run, several at once, when the first of them is asked for."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._ended: dict[Block, Ended] = {}

    def __getitem__(self, block: Block) -> Ended:
        if block not in self._ended:
            page = [other for other in BLOCKS if other.page == block.page]
            files = {other.file_name: other.text for other in page if other.file_name is not None}
            programs = [_program(other, files) for other in page]
            self._ended.update(zip(page, self._programs.run(programs), strict=True))
            for program in programs:
                if "DATABASE_URL" in program.environment:
                    name = urlsplit(program.environment["DATABASE_URL"]).path.removeprefix("/")
                    administer(f"DROP DATABASE {name} WITH (FORCE)")
        return self._ended[block]


def _program(block: Block, files: dict[str, str]) -> Program:
    environment = {"DATABASE_URL": _new_database()} if block.needs_postgres else {}
    script = block.file_name or "first.py"
    if block.is_part_of_django:
        module = script.removesuffix(".py").replace("/", ".")
        return Program(files={**files, "first.py": DJANGO_SCRIPT.format(module=module)}, script="first.py")
    is_module = block.file_name is not None and "__main__" not in block.text
    return Program(files={**files, script: block.text}, script=script, imported=is_module, environment=environment)


def _new_database() -> str:
    """The URL of a new database on the server of the tests."""
    name = f"docs_{uuid4().hex}"
    administer(f"CREATE DATABASE {name}")
    found = conninfo_to_dict(server_url())
    parameters = "&".join(f"{key}={found[key]}" for key in ("host", "port", "user", "password") if found.get(key))
    return f"postgresql:///{name}?{parameters}"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_program_of_the_documentation_runs(block: Block, ended: Answers) -> None:
    if block.oldest_django > django.VERSION[0]:
        pytest.skip(f"needs Django {block.oldest_django}, and that needs Python 3.12")
    answer = ended[block]
    assert answer.code == 0, f"{block} ended with {answer.code} after {answer.seconds} s:\n{answer.output}"


def test_a_program_that_fails_is_noticed(programs: Programs) -> None:
    texts = ("assert 1 == 2", "import nowhere", "import sys; sys.exit(3)", "print('well')", "import os; os.abort()")
    ended = programs.run([Program(files={"first.py": text}, script="first.py") for text in texts])
    assert [answer.code for answer in ended] == [1, 1, 3, 0, -6]
    assert "AssertionError" in ended[0].output
    assert ended[3].output == "well\n"


@pytest.mark.parametrize("page", pages())
def test_every_block_names_a_language_and_only_the_listed_ones_are_not_run(page: str) -> None:
    for block in blocks(page):
        assert block.language in {*CHECKED_ELSEWHERE, *NOT_RUN}, f"{block} is not run, and no list says why"
        assert block.language == "python" or "synergon import" not in block.text, f"{block} hides Python from the tests"
        if block.language == "json":
            json.loads(block.text)


def test_a_fence_has_only_words_with_a_meaning() -> None:
    known = ("file=", "django=")
    for block in BLOCKS:
        unknown = [word for word in block.words if word not in ("postgres", "django") and not word.startswith(known)]
        assert not unknown, f"{block} has words without a meaning: {unknown}"
