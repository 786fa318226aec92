"""A kind that a running worker would never run is rejected."""

from __future__ import annotations

import pytest
from tests.support import PATIENCE_SECONDS

from synergon import Engine, KindError


async def test_a_kind_cannot_be_registered_while_the_worker_runs(engine: Engine) -> None:
    async def late() -> int:
        return 7

    async with engine.worker():
        with pytest.raises(KindError, match="register all kinds before it starts"):
            engine.task(late)
    kind = engine.task(late)
    async with engine.worker():
        assert await (await kind.enqueue()).result(PATIENCE_SECONDS) == 7
