"""Parts of the dashboard: texts, tracebacks, the graph of a flow."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from synergon.model.task_statistics import BOUNDS, Histogram, Statistics, StatisticsPoint
from synergon.web.dashboard import charts, flow_graph, text
from synergon.web.dashboard.queue_page import rate_text
from synergon.web.dashboard.task_page import python_text
from synergon.web.dashboard.tracebacks import frames_of

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.3, "now"), (12, "12 s ago"), (300, "5 min ago"), (-42, "in 42 s"), (200_000, "2 d ago"), (-7300, "in 2 h")],
)
def test_a_moment_is_told_from_now(seconds: float, expected: str) -> None:
    assert text.relative(NOW - timedelta(seconds=seconds), NOW) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0004, "0.4 ms"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (61, "1 min 1 s"),
        (7260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
        (None, ""),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float | None, expected: str) -> None:
    assert text.duration(seconds) == expected


def test_numbers_sizes_and_intervals_are_short() -> None:
    assert text.number(1234567) == "1\u202f234\u202f567"
    assert text.number(None) == "–"
    assert text.size(25_300_000_000) == "25.3 GB"
    assert text.interval("PT900S") == "15 min"


def test_characters_that_a_browser_hides_are_shown_as_escapes() -> None:
    assert text.visible("a\x1b[31m\u202eb\n\tc\x00") == "a\\x1b[31m\\u202eb\n\tc\\x00"


def test_the_frames_of_the_application_are_told_apart() -> None:
    traceback = """Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/synergon/node/attempts/runner.py", line 12, in run
    await function()
  File "/srv/shop/payments.py", line 34, in charge
    gateway.charge(order)
    ~~~~~~~~~~~~~~^^^^^^^
  File "/usr/lib/python3.12/socket.py", line 5, in connect
    raise OSError
OSError: no route
"""
    frames = frames_of(traceback)
    assert [(frame.function, frame.line, frame.is_own) for frame in frames] == [
        ("connect", 5, False),
        ("charge", 34, True),
        ("run", 12, False),
    ]
    assert frames[1].code == "gateway.charge(order)"
    assert frames_of("no traceback at all") == []


def test_a_call_is_python_that_can_be_copied() -> None:
    assert python_text("mail", {"to": "a'b", "n": None}) == (
        """await engine.enqueue([engine.call('mail', to="a'b", n=None)])"""
    )
    assert python_text("mail", {"not a name": 1}) == (
        "await engine.enqueue([engine.call('mail', **{'not a name': 1})])"
    )
    assert python_text("mail", None) == "await engine.enqueue([engine.call('mail', ...)])"


def step(task_id: int, kind: str, *needs: int, state: str = "succeeded", item_of: int | None = None) -> dict[str, Any]:
    """A step of a flow as the API answers it. `item_of`: the last needs are items of this map, which is a need too."""
    found = [{"task_id": need, "position": position, "item": None} for position, need in enumerate(needs)]
    if item_of is not None:
        found = [{"task_id": item_of, "position": 0, "item": None}]
        found += [{"task_id": need, "position": 0, "item": number} for number, need in enumerate(needs)]
    return {"task": {"id": task_id, "kind": kind, "title": None, "state": state}, "needs": found}


def test_steps_stand_after_those_that_they_need() -> None:
    drawing = flow_graph.drawn([step(1, "a"), step(2, "b"), step(3, "c", 1, 2), step(4, "d", 3, 1)])
    assert drawing is not None
    assert [box.column for box in drawing.boxes] == [0, 0, 1, 2]
    assert len(drawing.lines) == 4
    places = {(box.x, box.y) for box in drawing.boxes}
    assert len(places) == 4
    assert all(box.x + flow_graph.WIDTH <= drawing.width for box in drawing.boxes)
    assert flow_graph.drawn([]) is None


def test_a_wide_map_is_folded_between_its_source_and_its_use() -> None:
    items = range(10, 30)
    steps = [step(1, "pages"), *(step(item, "page", state="running" if item == 12 else "succeeded") for item in items)]
    drawing = flow_graph.drawn([*steps, step(99, "publish", *items, item_of=1)])
    assert drawing is not None
    source, folded, use = drawing.boxes
    assert (source.column, folded.column, use.column) == (0, 1, 2)
    assert folded.is_folded
    assert (folded.label, folded.state, folded.summary) == ("page × 20", "running", "19 succeeded, 1 running")
    assert len(drawing.lines) == 2


def test_steps_that_need_each_other_do_not_hang_the_drawing() -> None:
    drawing = flow_graph.drawn([step(1, "a", 2), step(2, "b", 1)])
    assert drawing is not None
    assert len(drawing.boxes) == 2


def counted(kind: str, points: dict[datetime, tuple[int, int]], **numbers: Any) -> Statistics:
    """Statistics of a kind, with the successes and failures at each moment."""
    return Statistics(
        kind=kind,
        queue="default",
        since=NOW - timedelta(hours=1),
        until=NOW,
        accepted=0,
        started=0,
        ended={
            "succeeded": sum(pair[0] for pair in points.values()),
            "error": sum(pair[1] for pair in points.values()),
        },
        wait=Histogram(),
        run=Histogram(),
        errors=(),
        depth=0,
        span_seconds=60,
        points=tuple(StatisticsPoint(at=at, succeeded=pair[0], failed=pair[1]) for at, pair in points.items()),
        **numbers,
    )


def test_a_chart_has_a_bar_for_each_span_until_now() -> None:
    early, late = NOW - timedelta(minutes=59), NOW
    found = [counted("a", {early: (3, 1), late: (5, 0)}), counted("b", {late: (0, 5)})]
    chart = charts.chart(found, "1h", NOW)
    assert len(chart.bars) == 60
    assert (chart.bars[0].at, chart.bars[-1].at) == (early, late)
    assert chart.most == 10
    assert [(bar.succeeded, bar.failed) for bar in (chart.bars[0], chart.bars[-1])] == [(3, 1), (5, 5)]
    assert (chart.bars[-1].succeeded_height, chart.bars[-1].failed_height) == (50.0, 50.0)
    assert sum(bar.succeeded + bar.failed for bar in charts.chart(found, "7d", NOW).bars) == 14


def test_figures_are_sums_and_nothing_is_a_dash() -> None:
    figures = charts.Figures.of([counted("a", {NOW: (3, 1)}), counted("b", {NOW: (0, 4)})])
    assert (figures.succeeded, figures.failed, figures.failed_part) == (3, 5, "62.5 %")
    assert (figures.waited(0.95), charts.Figures.of([]).failed_part) == ("–", "–")


def test_a_bar_has_the_depth_of_each_queue_and_the_latency_of_all() -> None:
    def waited(place: int) -> Histogram:
        return Histogram(counts=tuple(int(index == place) for index in range(len(BOUNDS) + 1)), seconds=1.0)

    points = (
        StatisticsPoint(at=NOW - timedelta(minutes=90), depth=5, started=1, wait=waited(9)),
        StatisticsPoint(at=NOW - timedelta(minutes=80), depth=8),
    )
    deep = msgspec.structs.replace(counted("a", {}), points=points, depth=8)
    other = msgspec.structs.replace(
        counted("b", {}), queue="mail", points=(StatisticsPoint(at=NOW, depth=2, started=1, wait=waited(0)),)
    )
    chart = charts.chart([deep, other], "1d", NOW)
    before, _, last = chart.bars[-3:]
    assert (before.depths, before.depth_height) == ({"default": 8}, 100.0)
    assert (last.depths, last.depth, last.depth_height) == ({"mail": 2}, 2, 25.0)
    assert before.wait_95 is not None
    assert 0.5 < before.wait_95 <= 1.0
    assert (chart.deepest, chart.slowest, before.wait_height) == (8, before.wait_95, 100.0)
    assert chart.bars[0].wait_95 is None
    assert charts.depths_of([deep, other], "1d").total() == 10


def test_a_sparkline_goes_from_the_bottom_to_the_top() -> None:
    assert charts.sparkline({5: 1, 7: 2}, range(5, 8)) == "0.0,10.0 50.0,19.0 100.0,1.0"
    assert charts.sparkline({1: 1}, range(5, 8)) == ""


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "–"), (1, "1 / h"), (60, "1 / min"), (766, "12.8 / min"), (7200, "2 / s")]
)
def test_a_rate_has_the_unit_that_fits(count: int, expected: str) -> None:
    assert rate_text(count, 3600) == expected
    assert rate_text(1, 86400) == "1 start"


@pytest.mark.parametrize(
    ("stored", "expected"), [("PT900S", "15m"), ("P1D", "1d"), ("PT5400S", "90m"), ("PT0.25S", "0.25s"), ("PT0S", "0s")]
)
def test_an_interval_is_shown_as_users_write_it(stored: str, expected: str) -> None:
    assert text.interval_option(stored) == expected


def test_values_for_a_script_survive_the_escapes_of_a_template() -> None:
    value = {"address": "http://\u202e\x1b\x7f<b>\"'"}
    assert json.loads(text.visible(text.attribute_json(value))) == value


def test_a_wide_map_is_unfolded_on_demand() -> None:
    steps = [
        {"task": {"id": number, "kind": "page", "title": None, "state": "succeeded"}, "needs": []}
        for number in range(1, 9)
    ]
    folded, unfolded = flow_graph.drawn(steps), flow_graph.drawn(steps, unfolded=1)
    assert folded is not None
    assert unfolded is not None
    assert [box.label for box in folded.boxes] == ["page × 8"]
    assert [box.ids for box in unfolded.boxes] == [[number] for number in range(1, 9)]
