"""The pages for contributors name only what exists: files, modules and targets of the Makefile."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final

import pytest
from tests.docs.pages import ROOT, pages, text_of

PAGES: Final = [
    *(page for page in pages() if page.startswith("docs/contributing/")),
    *("CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md"),
]
PICTURE: Final = "docs/images/walk-of-a-task.svg"
ENDINGS: Final = ("py", "sql", "md", "toml", "yml", "yaml", "svg")

_SPAN: Final = re.compile(r"`([^`\n]+)`")
_PATH: Final = re.compile(rf"[\w.-]+(?:/[\w.-]+)+/?|[\w-]+/|[\w.-]+\.(?:{'|'.join(ENDINGS)})")
_MODULE: Final = re.compile(r"synergon(?:\.[a-z_]+)+")
_TARGET: Final = re.compile(r"\bmake ([a-z]+)\b")


def spans(text: str) -> list[str]:
    """What stands between backticks, without fenced blocks."""
    return _SPAN.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def named_paths(text: str) -> list[str]:
    """The spans that are paths."""
    return [span for span in spans(text) if _PATH.fullmatch(span) and not span.startswith(".venv")]


def exists(path: str) -> bool:
    """Whether it is in the repository, or below the source of the package."""
    return (ROOT / path).exists() or (ROOT / "src" / "synergon" / path).exists()


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    missing = [path for path in named_paths(text_of(page)) if not exists(path)]
    assert not missing, f"{page} names files that do not exist: {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_every_module_exists(page: str) -> None:
    named = {name for span in spans(text_of(page)) for name in _MODULE.findall(span)}
    missing = [name for name in named if find_spec(name) is None]
    assert not missing, f"{page} names modules that do not exist: {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_every_target_of_make_exists(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    code = "\n".join([*spans(text_of(page)), *re.findall(r"^make .*$", text_of(page), re.MULTILINE)])
    missing = [target for target in _TARGET.findall(code) if f"\n{target}:" not in makefile]
    assert not missing, f"{page} names targets that the Makefile does not have: {missing}"


def test_every_file_in_the_picture_exists() -> None:
    texts = re.findall(r'<text class="code"[^>]*>([^<]+)</text>', text_of(PICTURE))
    assert len(texts) > 5
    missing = [path for text in texts for path in text.split(", ") if not exists(path)]
    assert not missing, f"{PICTURE} names files that do not exist: {missing}"


def test_a_file_that_is_gone_is_noticed() -> None:
    text = (
        "`node/gone.py`, `stores/`, `tests/none/`, `a.b`, `PENDING/x`, `sqlite:///x.db`\n```text\n`no/file.py`\n```\n"
    )
    assert [path for path in named_paths(text) if not exists(path)] == ["node/gone.py", "tests/none/", "PENDING/x"]


def test_the_pages_name_many_files() -> None:
    assert len({path for page in PAGES for path in named_paths(text_of(page))}) > 100
