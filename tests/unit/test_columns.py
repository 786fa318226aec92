"""The list of a task's columns agrees with the tables, and statements are made from it."""

from __future__ import annotations

import re

import pytest

from synergon.model.tasks import NewTask
from synergon.stores.columns import COLUMNS, GIVEN, Form, Table, fill, form_of
from synergon.stores.postgres.profile import PROFILES
from synergon.stores.sqlite.schema import migrations
from synergon.stores.statements import statements

OF_ONE_STORE = {"shard", "ended_in"}
"""Columns that a store adds for itself; no value is ever given to them."""

MIGRATIONS = {
    "sqlite": ("synergon_task", "synergon_history"),
    "standard": ("s.task", "s.history"),
    "distributed": ("s.task", "s.history"),
}


def columns_of(store: str, table: str) -> set[str]:
    """The columns that the migrations of a store give to a table."""
    script = (migrations() if store == "sqlite" else PROFILES[store].scripts("s"))[0]
    found = re.search(
        rf"^CREATE TABLE (?:IF NOT EXISTS )?{re.escape(table)} \(\n(.*?)^\)", script, re.MULTILINE | re.DOTALL
    )
    assert found is not None, table
    return set(re.findall(r"^    ([a-z_]+) ", found[1], re.MULTILINE)) - OF_ONE_STORE


@pytest.mark.parametrize("store", MIGRATIONS)
def test_the_tables_of_every_store_have_the_listed_columns(store: str) -> None:
    live, history = MIGRATIONS[store]
    assert columns_of(store, live) == {column.name for column in COLUMNS if column.table is not Table.HISTORY}
    assert columns_of(store, history) == {column.name for column in COLUMNS if column.table is not Table.LIVE}


@pytest.mark.parametrize(
    ("task", "form"),
    [
        (NewTask(kind="k"), Form.BARE),
        (NewTask(kind="k", requirements="{}", priority=3, max_attempts=2), Form.BARE),
        (NewTask(kind="k", meta=b"{}"), Form.PLAIN),
        (NewTask(kind="k", tags=("t",)), Form.PLAIN),
        (NewTask(kind="k", delay=1), Form.PLAIN),
        (NewTask(kind="k", limit_key="", meta=b"{}"), Form.BOUND),
        (NewTask(kind="k", group_id=1), Form.BOUND),
        (NewTask(kind="k", is_command=True), Form.BOUND),
    ],
)
def test_a_task_is_inserted_by_the_shortest_form_that_has_its_columns(task: NewTask, form: Form) -> None:
    assert form_of(task) is form


def test_placeholders_are_numbered_in_the_order_of_the_values() -> None:
    task = NewTask(kind="greet", queue="q", priority=7, payload=b'{"a": 1}', origin="me")
    filled = fill("INSERT ({bare}) VALUES ({bare.values from $3})")
    names, numbers = re.findall(r"\((.*?)\)", filled)
    values = dict(zip(names.split(", "), GIVEN[Form.BARE].texts(task), strict=True))
    assert numbers.split(", ") == [f"${number}" for number in range(3, 3 + len(values))]
    assert values["kind"] == "greet"
    assert values["payload"] == '{"a": 1}'
    assert values["origin"] == "me"


@pytest.mark.parametrize(
    ("store", "overlay"), [("sqlite", None), ("postgres", None), ("postgres", "postgres/distributed")]
)
def test_no_statement_has_a_placeholder_left(store: str, overlay: str | None) -> None:
    for name, text in statements(store, "app", overlay).items():
        assert re.search(r"\{[a-zA-Z]", re.sub("{(names|new|key)}", "", text)) is None, (
            name
        )  # those are filled for each call
