"""The engine of the app under test, for each test anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import pytest
from tests.testing.app import engine, ran

from synergon import testing
from synergon.testing import Tester

MIDNIGHT: Final = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
async def tester() -> AsyncIterator[Tester]:
    async with testing.memory(engine, now=MIDNIGHT) as tester:
        yield tester


@pytest.fixture
async def inline() -> AsyncIterator[Tester]:
    async with testing.inline(engine, now=MIDNIGHT) as tester:
        yield tester
