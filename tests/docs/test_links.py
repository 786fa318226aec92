"""Links, images, and what the reference must not forget."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from tests.docs.pages import ROOT, anchors, links, pages, text_of

import synergon
from synergon.engine import Engine
from synergon.options.options import CallOptions, TaskOptions
from synergon.options.settings import load

REFERENCE = "docs/reference.md"


@pytest.mark.parametrize("page", pages())
def test_every_local_link_and_image_exists(page: str) -> None:
    for link in links(page):
        target = urlsplit(link)
        if target.scheme in ("http", "https"):
            continue
        path = (ROOT / page).parent / unquote(target.path) if target.path else ROOT / page
        assert path.exists(), f"{page} links to {link}, which does not exist"
        if target.fragment:
            found = anchors(str(path.resolve().relative_to(ROOT)))
            assert target.fragment in found, f"{page} links to {link}, and that page has no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[str] = set()
    todo = ["docs/index.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in links(page):
            target = urlsplit(link)
            path = ((ROOT / page).parent / target.path).resolve()
            if not target.scheme and path.suffix == ".md" and path.is_file() and path.is_relative_to(ROOT):
                todo.append(str(path.relative_to(ROOT)))
    assert not {page for page in pages() if page.startswith("docs/")} - reached


@pytest.mark.parametrize("name", synergon.__all__)
def test_the_reference_has_every_public_name(name: str) -> None:
    assert is_mentioned(name), f"{REFERENCE} does not mention {name}"


@pytest.mark.parametrize("setting", load({}).sources)
def test_the_reference_has_every_setting_and_its_variable(setting: str) -> None:
    assert is_mentioned(setting)
    assert is_mentioned(f"SYNERGON_{setting.upper()}")


@pytest.mark.parametrize("option", sorted({*TaskOptions.__annotations__, *CallOptions.__annotations__}))
def test_the_reference_has_every_option(option: str) -> None:
    assert is_mentioned(option)


UNSAID = {"declaration", "of"}
"""What other parts of synergon ask of these, and nothing is promised about."""

PUBLIC = {
    owner: sorted(name for name in vars(owner) if not name.startswith("_") and name not in UNSAID)
    for owner in (
        *(synergon.Handle, synergon.Context, synergon.Retry, synergon.Retention, synergon.Rate, synergon.Health),
        *(synergon.Provider, synergon.Command, synergon.Server, synergon.Group),
    )
}


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in PUBLIC.items() for name in names])
def test_the_reference_has_every_method_and_field(owner: type, name: str) -> None:
    assert is_mentioned(name.removesuffix("_sync")), f"{REFERENCE} does not mention {owner.__name__}.{name}"


@pytest.mark.parametrize("name", sorted(name for name in dir(Engine("memory://")) if not name.startswith("_")))
def test_the_reference_has_everything_an_engine_does(name: str) -> None:
    assert is_mentioned(name.removesuffix("_sync")), f"{REFERENCE} does not mention Engine.{name}"


@pytest.mark.parametrize(
    "record",
    [
        synergon.ErrorRecord,
        synergon.GroupRecord,
        synergon.LimitRecord,
        synergon.NodeRecord,
        synergon.AuditRecord,
        synergon.ProviderTask,
        synergon.ServerRecord,
        synergon.Progress,
        synergon.QueueRecord,
        synergon.TaskPage,
        synergon.TaskRecord,
    ],
)
def test_the_reference_has_every_field_of_a_record(record: type[msgspec.Struct]) -> None:
    for name in record.__struct_fields__:
        assert is_mentioned(name), f"{REFERENCE} does not mention {record.__name__}.{name}"


def is_mentioned(name: str) -> bool:
    """Whether the reference has it as code."""
    return re.search(rf"`[^`\n]*(?<![\w]){re.escape(name)}(?![\w])[^`\n]*`", text_of(REFERENCE)) is not None
