"""The pages of the documentation, and what a test wants to know of them: code blocks, links, headings.

A code block is a whole program. These words may follow the language in its fence:

- `file=tasks.py`: the reader is told to save it under this name. The other blocks of its page find it beside them. It
  is imported instead of run, unless it says what to do as `__main__`.
- `postgres`: it needs a PostgreSQL server, whose URL is in `$DATABASE_URL`. Each program has a database of its own.
- `django`: it is a module of the Django project of its page, whose settings are `mysite.settings`. It is imported after
  Django is set up.
- `django=6`: the page needs that release of Django; with an older one the block is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
_LINK: Final = re.compile(
    r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)|<img[^>]*\ssrc=\"([^\"]+)\"|<source[^>]*\ssrcset=\"([^\"]+)\""
)
_HEADING: Final = re.compile(r"^#+ +(.*?) *#*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of code."""

    page: str
    """Path of its page, from the root of the project."""
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name it is to be saved under, if any."""
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)

    @property
    def needs_postgres(self) -> bool:
        """Whether it needs a PostgreSQL server."""
        return "postgres" in self.words

    @property
    def is_part_of_django(self) -> bool:
        """Whether it is a module of a Django project."""
        return "django" in self.words

    @property
    def oldest_django(self) -> int:
        """The release of Django that it needs; 0 if any will do."""
        return int(next((word.removeprefix("django=") for word in self.words if word.startswith("django=")), 0))


def pages() -> list[str]:
    """Every page, from the root of the project."""
    roots = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    found = [*(ROOT / name for name in roots), *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def text_of(page: str) -> str:
    """The page as it is written."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of these languages, in order; without languages, all."""
    return [block for block in _blocks(page) if not languages or block.language in languages]


def _blocks(page: str) -> Iterator[Block]:
    info: list[str] | None = None
    start, indent, lines = 0, 0, list[str]()
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        fence = _FENCE.match(line)
        if info is None and fence is not None:
            info, start, indent, lines = fence["info"].split(), number, len(fence["indent"]), []
        elif info is not None and fence is not None and not fence["info"].strip():
            language, *words = info or [""]
            text = "".join(f"{entry[indent:]}\n" for entry in lines)
            yield Block(page=page, line=start, language=language, words=tuple(words), text=text)
            info = None
        elif info is not None:
            lines.append(line)


def prose(page: str) -> str:
    """The page without its code blocks."""
    kept: list[str] = []
    is_code = False
    for line in text_of(page).splitlines():
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            kept.append(line)
    return "\n".join(kept)


def links(page: str) -> list[str]:
    """The targets of all links and images."""
    return [next(filter(None, found)) for found in _LINK.findall(prose(page))]


def anchors(page: str) -> set[str]:
    """The fragments that the headings of a page can be reached by."""
    found = (_HEADING.match(line) for line in prose(page).splitlines())
    return {_anchor(match[1]) for match in found if match is not None}


def _anchor(heading: str) -> str:
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower()
    return plain.replace(" ", "-")
