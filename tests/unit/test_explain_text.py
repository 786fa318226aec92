"""Every reason to wait has a text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from synergon.explain.explanation import Cause, Why
from synergon.explain.text import _CLAUSES, _FULL, clause

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_every_reason_has_a_text() -> None:
    assert set(_CLAUSES) == set(Why)
    assert set(_FULL) <= set(Why)


@pytest.mark.parametrize("why", Why)
def test_the_text_is_a_clause(why: Why) -> None:
    cause = Cause(
        why=why, subject="gpu", in_use=1, of=2, needed=3, tasks=(7,), since=NOW, until=NOW + timedelta(minutes=1)
    )
    text = clause(cause, NOW)
    assert text == text.strip(" ;.,") != ""
    assert "None" not in text
