"""The programs in README and docs run as they stand, each in an empty folder; the few that cannot say why."""

from __future__ import annotations

from typing import Final

import pytest
from tests.docs.pages import Block, blocks, pages
from tests.docs.programs import Ended, Program, Programs

MOST_NOT_RUN: Final = 3

BLOCKS: Final = [block for page in pages() for block in blocks(page, "python")]


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
            page = [other for other in BLOCKS if other.page == block.page and other.may_run]
            files = {other.file_name: other.text for other in page if other.file_name is not None}
            ended = self._programs.run([_program(other, files) for other in page])
            self._ended.update(zip(page, ended, strict=True))
        return self._ended[block]


def _program(block: Block, files: dict[str, str]) -> Program:
    script = block.file_name or "first.py"
    is_module = block.file_name is not None and "__main__" not in block.text
    return Program(files={**files, script: block.text}, script=script, imported=is_module)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.may_run], ids=str)
def test_a_program_of_the_documentation_runs(block: Block, ended: Answers) -> None:
    answer = ended[block]
    assert answer.code == 0, f"{block} ended with {answer.code} after {answer.seconds} s:\n{answer.output}"


def test_a_program_that_fails_is_noticed(programs: Programs) -> None:
    texts = ("assert 1 == 2", "import nowhere", "import sys; sys.exit(3)", "print('well')", "import os; os.abort()")
    ended = programs.run([Program(files={"first.py": text}, script="first.py") for text in texts])
    assert [answer.code for answer in ended] == [1, 1, 3, 0, -6]
    assert "AssertionError" in ended[0].output
    assert ended[3].output == "well\n"


def test_few_programs_are_not_run_and_each_says_why() -> None:
    not_run = [block for block in BLOCKS if not block.may_run]
    assert len(not_run) <= MOST_NOT_RUN, [str(block) for block in not_run]
    for block in not_run:
        assert block.text.startswith("# "), f"{block} is not run and does not say why in its first line"
        compile(block.text, str(block), "exec")


def test_a_fence_has_only_words_with_a_meaning() -> None:
    for block in BLOCKS:
        unknown = [word for word in block.words if word != "no-run" and not word.startswith("file=")]
        assert not unknown, f"{block} has words without a meaning: {unknown}"
