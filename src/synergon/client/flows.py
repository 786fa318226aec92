"""The part of an engine that finds flows and groups: `engine.flows`, `engine.groups`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from synergon.async_calls import Bridge, sync
from synergon.client.operations import check_id, check_text, check_whole
from synergon.errors import OptionError, TaskNotFound
from synergon.flow_run import FlowRun, record_of, tasks_of
from synergon.group import Group
from synergon.handle import Handle
from synergon.model.flows import FlowPage, FlowQuery
from synergon.model.lifecycle import FINAL, State

if TYPE_CHECKING:
    from synergon.engine import Engine


class Groups:
    """Finds groups."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def sync_bridge(self) -> Bridge:
        """The bridge that runs the `*_sync` methods of this class for code without an event loop."""
        return self._engine.sync_bridge

    async def get(self, group_id: int) -> Group[Any]:
        """The group with this id. Raises TaskNotFound if there is none."""
        (record,) = await self._engine._store.groups([check_id(group_id)])
        if record is None or record.is_flow:
            raise TaskNotFound(f"there is no group {group_id}: it never existed, or it was pruned", group_id)
        tasks = await tasks_of(self._engine, group_id)
        handles = [_handle(self._engine, task.id, task.kind) for task in tasks]
        then = None
        if record.then_id is not None:
            (last,) = await self._engine._store.get([record.then_id])
            then = None if last is None else _handle(self._engine, last.id, last.kind)
        return Group(self._engine, group_id, record.name, handles, then)

    get_sync: Final = sync(get)


def _handle(engine: Engine, task_id: int, kind: str) -> Handle[Any]:
    return Handle(engine, task_id, task_type=engine.kinds.get(kind))


class Flows:
    """Finds flows, from any process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def sync_bridge(self) -> Bridge:
        """The bridge that runs the `*_sync` methods of this class for code without an event loop."""
        return self._engine.sync_bridge

    async def get(self, flow_id: int) -> FlowRun:
        """The flow with this id. Raises TaskNotFound if there is none."""
        record = await record_of(self._engine, check_id(flow_id))
        assert record.last_id is not None, "a flow has steps"
        (last,) = await self._engine._store.get([record.last_id])
        task_type = None if last is None else self._engine.kinds.get(last.kind)
        return FlowRun(self._engine, flow_id, record.name, Handle(self._engine, record.last_id, task_type=task_type))

    get_sync: Final = sync(get)

    async def list(
        self,
        *,
        name: str | None = None,
        state: State | str | None = None,
        is_open: bool | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> FlowPage:
        """One page of the flows that match, newest first. For the following page, pass `page.next` as `before`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise OptionError(f"limit must be a whole number from 1 on, got {limit!r}")
        try:
            wanted = None if state is None else State(state)
        except ValueError:
            wanted = None
        if state is not None and wanted not in FINAL:
            raise OptionError(
                f"a flow's state is one of {', '.join(sorted(FINAL))}, got {state!r}; or give is_open=True"
            )
        if name is not None:
            check_text("name", name)
        if before is not None:
            check_whole("before", before)
        return await self._engine._store.list_flows(
            FlowQuery(name=name, state=wanted, is_open=is_open, before=before, limit=min(limit, 1000))
        )

    list_sync: Final = sync(list)  # noqa: A003  the method above
