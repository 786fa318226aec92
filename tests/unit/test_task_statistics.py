"""Histograms, sums and fingerprints of statistics."""

from __future__ import annotations

import pytest

from synergon.cli.stats import bars
from synergon.model.record import to_datetime
from synergon.model.task_statistics import (
    BOUNDS,
    EMPTY,
    Buckets,
    ErrorCount,
    Histogram,
    Numbers,
    Statistics,
    StatisticsPoint,
    fingerprint,
)


def histogram(*seconds: float) -> Histogram:
    buckets = Buckets(BOUNDS)
    for value in seconds:
        buckets.observe(value)
    return Histogram(counts=tuple(buckets.counts), seconds=buckets.sum)


def test_a_percentile_lies_in_the_bucket_of_its_value() -> None:
    found = histogram(*([0.002] * 90), *([3.0] * 9), 100.0)
    assert found.count == 100
    assert found.mean == pytest.approx((0.18 + 27 + 100) / 100)
    for part, low, high in ((0.5, 0.001, 0.0025), (0.9, 0.001, 0.0025), (0.95, 2.5, 5.0), (1.0, 60.0, 300.0)):
        percentile = found.percentile(part)
        assert percentile is not None
        assert low < percentile <= high, part


def test_percentiles_at_the_ends() -> None:
    assert Histogram().percentile(0.5) is None
    assert Histogram().mean is None
    assert histogram(0.0).percentile(0.0) == pytest.approx(0.0, abs=1e-6)
    assert histogram(1e9).percentile(0.5) == BOUNDS[-1]
    assert histogram(BOUNDS[0]).counts[0] == 1


def test_a_histogram_with_other_buckets_is_rejected() -> None:
    with pytest.raises(ValueError, match="a histogram has 20 counts, got 3"):
        Histogram(counts=(1, 2, 3))
    assert len(EMPTY) == 20


def test_what_was_added_and_taken_away_again_is_as_before() -> None:
    error = ErrorCount(type="E", message="m", count=2)
    first = Numbers(accepted=3, started=2, ended={"succeeded": 2}, wait=histogram(1), run=histogram(0.5), errors={})
    second = Numbers(accepted=1, started=1, ended={"error": 1}, wait=histogram(2), run=histogram(), errors={"x": error})
    both = Numbers.total([first, second])
    assert (both.accepted, both.started, both.ended) == (4, 3, {"succeeded": 2, "error": 1})
    assert both.errors == {"x": error}
    assert Numbers.total([both, second]).errors["x"].count == 4
    later = both.without(first)
    assert (later.accepted, later.ended, later.wait.counts) == (1, {"error": 1}, second.wait.counts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 is gone", "order 4 is gone"),
        ("no user 'ada'", "no user 'bob'"),
        ('key "a b" taken', 'key "c" taken'),
        ("at 0x7f14f93d7e20", "at 0x1"),
        ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "id 00000000-0000-0000-0000-000000000000"),
    ],
)
def test_errors_that_differ_in_numbers_ids_and_quoted_texts_are_one(one: str, other: str) -> None:
    assert fingerprint("E", one) == fingerprint("E", other)


def test_other_errors_are_others() -> None:
    digests = {fingerprint(*error)[0] for error in (("E", "a"), ("F", "a"), ("E", "b"), ("E", ""))}
    assert len(digests) == 4
    digest, message = fingerprint("E", "x" * 10_000)
    assert (len(digest), len(message)) == (16, 200)
    assert fingerprint("E", "\ud800")[0]


def test_bars_show_the_starts_over_time() -> None:
    points = tuple(StatisticsPoint(at=to_datetime(at * 1_000_000), started=started) for at, started in ((0, 1), (9, 8)))
    one = Statistics(
        depth=0,
        kind="k",
        queue="q",
        since=to_datetime(0),
        until=to_datetime(10_000_000),
        accepted=0,
        started=9,
        ended={},
        wait=Histogram(),
        run=Histogram(),
        errors=(),
        span_seconds=60,
        points=points,
    )
    assert bars(one, 4) == "▁  █"
