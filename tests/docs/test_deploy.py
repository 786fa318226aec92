"""The alert rules and the board in `deploy/`: they parse, and ask only for metrics and labels that workers have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import NewEngine
from tests.support import Gate, ended

from synergon.cli.supervisor_health import merged
from synergon.model.cluster_status import KindAge, QueueStatus, StoreVitals
from synergon.model.limits import LimitRecord
from synergon.node.health import exposition
from synergon.node.health.exposition import StoreNumbers, text_of

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
SCRAPED: Final = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of buckets."""
DURATION: Final = re.compile(r"^\d+[smhd]$")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/synergon.json").read_text())
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m")


async def samples(new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The names of all samples that workers can have, with their labels: with a server as the store, too."""

    async def everything(node: Any) -> StoreNumbers:
        queue = QueueStatus(
            name="default", is_paused=False, counts={}, kinds=(KindAge(kind="work", oldest_ready_seconds=1.0),)
        )
        limit = LimitRecord(name="license", value=2, in_use=1)
        vitals = StoreVitals(
            pool_size=10, pool_in_use=1, pool_waiting=0, dead_rows={"task": 1}, oldest_transaction_seconds=1.0
        )
        return StoreNumbers(await node.store.counts(), [queue], [limit], vitals)

    monkeypatch.setattr(exposition, "_read_store", everything)
    engine, gate = new_engine(url), Gate()

    @engine.task
    async def work() -> None: ...

    @engine.task
    async def hold() -> None:
        await gate.hold()

    worker = engine.worker(health_listen="127.0.0.1:0")
    async with worker:
        await ended(await work.enqueue())
        await hold.enqueue()
        await gate.until_reached()
        text = (await exposition.Exposition(worker.monitor.readiness)._make()).decode()
        gate.open()
    families = text_string_to_metric_families(text_of(merged({"1": text})).decode())
    found: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def selectors(node: Any) -> Iterator[Any]:
    """All selectors of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
        part = getattr(node, name, None)
        for one in part if isinstance(part, list) else [part]:
            if one is not None:
                yield from selectors(one)


async def test_every_expression_parses_and_asks_for_metrics_and_labels_that_exist(
    new_engine: NewEngine, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await samples(new_engine, memory_url, monkeypatch)
    used: set[str] = set()
    for expression in expressions():
        found = list(selectors(promql_parser.parse(expression)))
        assert found, expression
        for selector in found:
            assert selector.name in known, f"{selector.name} in {expression}"
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= known[selector.name], f"{labels} of {selector.name} in {expression}"
            used.add(selector.name)
        for grouped in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression):
            labels = {label.strip() for label in grouped.split(",")} - SCRAPED
            assert labels <= {label for selector in found for label in known[selector.name]}, expression
    shown = {re.sub("_(total|bucket|sum|count|created)$", "", name) for name in used}
    all_of_them = {re.sub("_(total|bucket|sum|count|created)$", "", name) for name in known}
    assert shown == all_of_them, "the board or an alert has every metric"


def test_every_alert_has_a_name_of_its_own_a_severity_and_a_summary() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert DURATION.match(rule.get("for", "1m"))


def test_the_panels_of_the_board_do_not_overlap() -> None:
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
