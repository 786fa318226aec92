"""Prints why a task waits: the sentence, then a table of the nodes."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from synergon.cli.output import duration, new_table, print_line, print_table
from synergon.explain.explanation import Explanation, NodeOutlook
from synergon.explain.text import names, reasons


def print_explanation(explanation: Explanation, now: datetime) -> None:
    """Print the explanation. The first line is the sentence; a table of the nodes follows if there are any."""
    print_line(f"task {explanation.id} ({explanation.kind}): {explanation.sentence}")
    if not explanation.nodes:
        return
    print_line()
    table = new_table("node", "can start", "reason", "status", elastic=("reason",), dispensable=("status",))
    called = names(explanation.nodes)
    for node in explanation.nodes:
        table.add_row(called[node.id], _answer(node), _reasons(node, now), f"{duration(round(node.age))} ago")
    print_table(table)


def _answer(node: NodeOutlook) -> Text:
    return Text("yes", style="green") if node.can_start else Text("no", style="yellow")


def _reasons(node: NodeOutlook, now: datetime) -> str:
    return reasons(node.causes, now) if node.causes else ""
