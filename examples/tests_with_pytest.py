"""Tests of an application with the fixtures of synergon: in memory, with a clock that the test moves.

In a project the application and its tests are modules of their own, and pytest.ini names the engine:

    [pytest]
    synergon_engine = shop.app:engine
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from synergon import Context, Engine, Retry, State, injected
from synergon.testing import ManualClock, Tester

engine = Engine("sqlite:////srv/shop/shop.db")  # no test opens it


@engine.task(queue="mail", retry=Retry(attempts=3, first="1m", factor=2))
async def send_receipt(order: int, ctx: Context = injected) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the mail server does not answer")
    return f"receipt of order {order}"


def check_out(order: int) -> None:
    send_receipt.with_options(key=f"order {order}").enqueue_sync(order)


# ---------------------------------------------------------------- the tests


def test_a_receipt_is_sent_once_for_each_order(synergon_tester: Tester) -> None:
    check_out(1)
    check_out(1)
    check_out(2)
    synergon_tester.assert_enqueued(send_receipt, 1, count=1)
    synergon_tester.assert_enqueued(send_receipt, 2, queue="mail")


def test_a_receipt_is_sent_again_after_a_minute(synergon_tester: Tester, synergon_clock: ManualClock) -> None:
    check_out(1)
    (record,) = synergon_tester.drain_sync()
    assert record.state is State.SCHEDULED

    synergon_clock.advance("1m")
    (record,) = synergon_tester.drain_sync()
    assert record.result == "receipt of order 1"


class TestOnSqlite:
    """The tests of this class use a temporary file, and a real worker."""

    @pytest.fixture
    def synergon_url(self) -> str:
        return "sqlite://"

    def test_the_receipt_is_stored(self, synergon_engine: Engine) -> None:
        check_out(1)
        assert synergon_engine.counts_sync(kind="send_receipt")[State.READY] == 1


if __name__ == "__main__":
    # A project writes these into its configuration, and runs `pytest`.
    options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:asyncio"]
    engine_option = f"synergon_engine={Path(__file__).stem}:engine"
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", __file__, *options, "-o", engine_option]))
