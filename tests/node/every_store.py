"""For modules whose tests meet PostgreSQL too, which takes longer: `from tests.node.every_store import every_url`."""

from __future__ import annotations

import pytest


@pytest.fixture(name="url", params=("memory", "sqlite", "postgres"))
def every_url(request: pytest.FixtureRequest) -> str:
    """The URL of each store in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found
