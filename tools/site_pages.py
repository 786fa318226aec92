"""Collects the pages of the documentation site in `build/site-pages`, from which `make site` builds it.

The folder has the structure of the repository, so that links between pages, and from pages to examples, hold as they
stand. Two pages are made here: the examples with their code, and the reference from docstrings.
"""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import Final

import synergon

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "build" / "site-pages"
TOP_LEVEL: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
MADE: Final = ("docs/docstrings.md", "examples/index.md")
"""The pages that are made here."""


def collect() -> None:
    """Make the folder anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for name in TOP_LEVEL:
        shutil.copy(ROOT / name, PAGES / name)
    for folder in ("docs", "examples", "deploy"):
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for page in PAGES.rglob("*.md"):
        page.write_text(with_wide_lists(page.read_text(encoding="utf-8")), encoding="utf-8")
    (PAGES / "docs/docstrings.md").write_text(docstrings(), encoding="utf-8")
    (PAGES / "examples/index.md").write_text(examples(), encoding="utf-8")


def with_wide_lists(text: str) -> str:
    """The page with lists inside lists indented by four spaces, without which the site shows one flat list."""
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if is_code else re.sub(r"^ {2,3}(?=(?:[-*]|\d+\.) )", "    ", part, flags=re.MULTILINE)
        for part, is_code in zip(parts, itertools.cycle((False, True)), strict=False)
    )


def docstrings() -> str:
    """The reference from docstrings: every public name, in the order of its module."""
    names = [name for name in synergon.__all__ if not name.startswith("_")]
    parts = [f"::: synergon.{name}" for name in names]
    return "\n\n".join(["# Reference from docstrings", "Every public name of `synergon`.", *parts]) + "\n"


def examples() -> str:
    """All examples with their code."""
    parts = ["# Examples"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8").rstrip()
        parts.append(f"## {path.name}\n\n```python\n{code}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    collect()
