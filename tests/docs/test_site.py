"""The navigation of the documentation site names every page, and only pages that exist. `make site` builds the site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from tests.docs.pages import ROOT, pages
from tools import site_pages

import synergon


def navigation() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return found


def entries(part: Any) -> Iterator[str]:
    """The pages that a part of the navigation names."""
    if isinstance(part, str):
        yield part
    else:
        for below in part.values() if isinstance(part, dict) else part:
            yield from entries(below)


def test_the_navigation_names_every_page_once() -> None:
    named = list(entries(navigation()["nav"]))
    assert len(named) == len(set(named))
    written = {page for page in pages() if page.startswith("docs/")}
    assert written - set(named) == set(), "pages that mkdocs.yml does not name"
    assert set(named) - written - {*site_pages.TOP_LEVEL, *site_pages.MADE} == set(), (
        "pages of mkdocs.yml that do not exist"
    )


def test_the_folders_of_the_site_are_those_of_the_tool() -> None:
    assert ROOT / navigation()["docs_dir"] == site_pages.PAGES


def test_the_pages_that_are_made_have_every_name_and_every_example() -> None:
    text = site_pages.docstrings()
    assert [name for name in synergon.__all__ if f"::: synergon.{name}\n" not in text and name[0] != "_"] == []
    made = site_pages.examples()
    assert all(f"## {path.name}\n" in made for path in (ROOT / "examples").glob("*.py"))


def test_lists_inside_lists_are_indented_by_four_spaces() -> None:
    text = "1. a\n   - b\n     c\n\n```text\n  - d\n```\n  - e\n- f\n"
    assert site_pages.with_wide_lists(text) == "1. a\n    - b\n     c\n\n```text\n  - d\n```\n    - e\n- f\n"
