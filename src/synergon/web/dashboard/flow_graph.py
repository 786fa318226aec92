"""The graph of a flow: places its steps in columns, each after those that it needs, and folds wide maps.

The drawing is made of numbers and texts only; the template writes it as SVG.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from synergon.model.lifecycle import State

WIDTH: Final = 176
HEIGHT: Final = 44
GAP_X: Final = 64
GAP_Y: Final = 18
MARGIN: Final = 16
MOST_ALIKE: Final = 6
"""Steps of one kind with equal needs and dependents are folded into one box if there are more."""
RANK: Final = (
    State.FAILED,
    State.RUNNING,
    State.READY,
    State.SCHEDULED,
    State.WAITING,
    State.CANCELLED,
    State.SUCCEEDED,
)
"""The states by precedence: a folded box shows the first of them that one of its steps has."""


@dataclass(slots=True)
class Box:
    """One step, or several that are folded."""

    ids: list[int]
    label: str
    kind: str
    states: Counter[str]
    needs: set[int] = field(default_factory=set)
    """The boxes that it needs, by index."""
    column: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def state(self) -> str:
        """The state that the box shows."""
        return next(state for state in RANK if self.states[state])

    @property
    def is_folded(self) -> bool:
        """Whether it has several steps."""
        return len(self.ids) > 1

    @property
    def summary(self) -> str:
        """The number of steps in each state, as text."""
        return ", ".join(f"{count} {state}" for state, count in self.states.most_common())


@dataclass(frozen=True, slots=True)
class Drawing:
    """The graph: its boxes, and the lines between them."""

    boxes: list[Box]
    lines: list[tuple[str, str]]
    """The path of each line, and the state of the box that it comes from."""
    width: float
    height: float


def drawn(steps: list[dict[str, Any]], unfolded: int | None = None) -> Drawing | None:
    """The drawing of the steps of a flow. None without steps. `unfolded` is the first task of a box that is not to be
    folded."""
    if not steps:
        return None
    boxes = _boxes(steps, unfolded)
    _arrange(boxes)
    lines = [(_line(boxes[index], box), boxes[index].state) for box in boxes for index in sorted(box.needs)]
    width = max(box.x for box in boxes) + WIDTH + MARGIN
    height = max(box.y for box in boxes) + HEIGHT + MARGIN
    return Drawing(boxes, lines, width, height)


def _needs(steps: list[dict[str, Any]]) -> dict[int, set[int]]:
    """The steps that each step needs. The items of a map come after the map, and before the steps that use its
    results."""
    found: dict[int, set[int]] = {step["task"]["id"]: set() for step in steps}
    for step in steps:
        maps = {need["position"]: need["task_id"] for need in step["needs"] if need["item"] is None}
        mapped = {need["position"] for need in step["needs"] if need["item"] is not None}
        for need in step["needs"]:
            source = maps.get(need["position"])
            if need["item"] is not None and source is not None and need["task_id"] in found:
                found[need["task_id"]].add(source)
            if need["item"] is not None or need["position"] not in mapped:
                found[step["task"]["id"]].add(need["task_id"])
    return found


def _boxes(steps: list[dict[str, Any]], unfolded: int | None) -> list[Box]:
    known = {step["task"]["id"] for step in steps}
    needs = {task_id: frozenset(needed & known) for task_id, needed in _needs(steps).items()}
    dependents: defaultdict[int, set[int]] = defaultdict(set)
    for task_id, needed in needs.items():
        for other in needed:
            dependents[other].add(task_id)
    alike: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for step in steps:
        task = step["task"]
        alike[task["kind"], needs[task["id"]], frozenset(dependents[task["id"]])].append(task)
    boxes: list[Box] = []
    for group in alike.values():
        is_folded = len(group) > MOST_ALIKE and group[0]["id"] != unfolded
        folds = [group] if is_folded else [[task] for task in group]
        boxes += [_box(tasks) for tasks in folds]
    boxes.sort(key=lambda box: box.ids[0])
    index = {task_id: number for number, box in enumerate(boxes) for task_id in box.ids}
    for number, box in enumerate(boxes):
        box.needs = {index[other] for task_id in box.ids for other in needs[task_id]} - {number}
    return boxes


def _box(tasks: list[dict[str, Any]]) -> Box:
    first = tasks[0]
    label = f"{first['kind']} × {len(tasks)}" if len(tasks) > 1 else first["title"] or first["kind"]
    return Box([task["id"] for task in tasks], label, first["kind"], Counter(task["state"] for task in tasks))


def _arrange(boxes: list[Box]) -> None:
    """Give each box a column after all that it needs, and a row near them."""
    for _ in boxes:
        moved = False
        for box in boxes:
            earliest = max((boxes[index].column + 1 for index in box.needs), default=0)
            moved |= earliest > box.column
            box.column = max(earliest, box.column)
        if not moved:
            break
    columns: defaultdict[int, list[Box]] = defaultdict(list)
    for box in boxes:
        columns[box.column].append(box)
    tallest = max(len(column) for column in columns.values())
    for number in sorted(columns):
        column = columns[number]
        column.sort(key=lambda box: (_mean_row(boxes, box), box.ids[0]))
        top = MARGIN + (tallest - len(column)) * (HEIGHT + GAP_Y) / 2
        for row, box in enumerate(column):
            box.x = MARGIN + number * (WIDTH + GAP_X)
            box.y = top + row * (HEIGHT + GAP_Y)


def _mean_row(boxes: list[Box], box: Box) -> float:
    rows = [boxes[index].y for index in box.needs]
    return sum(rows) / len(rows) if rows else 0.0


def _line(source: Box, target: Box) -> str:
    x1, y1, x2, y2 = source.x + WIDTH, source.y + HEIGHT / 2, target.x, target.y + HEIGHT / 2
    bend = max((x2 - x1) / 2, 24)
    return f"M{x1:g} {y1:g} C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
