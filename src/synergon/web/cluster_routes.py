"""The routes of the cluster: status, queues, limits, nodes, providers, the audit, the retention and the doctor."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from synergon.client.node_overview import read_overviews
from synergon.doctor.diagnosis import diagnose
from synergon.model.cluster_status import ClusterStatus
from synergon.model.limits import LimitRecord
from synergon.options.options import check_any_limit_name
from synergon.policies import Rate, Retention
from synergon.web import documents
from synergon.web.access import Role
from synergon.web.background import in_time
from synergon.web.problems import Problem
from synergon.web.redaction import hide_secrets
from synergon.web.routes import ApiCall, Route

MOST_AUDITED: Final = 1000

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


# ---------------------------------------------------------------- read


async def show_caller(call: ApiCall) -> Any:
    """The name and the role of the caller."""
    return {"name": call.user.name, "role": call.user.role}


async def show_status(call: ApiCall) -> Any:
    """The status of the cluster: workers, queues, failures of the last hour, and what needs attention."""
    found = await call.engine.status()
    return hide_secrets(found.as_dict() | {"problems": list(found.problems)})


async def list_queues(call: ApiCall) -> Any:
    """All queues, with the number of their tasks in each state."""
    return {"queues": [queue.as_dict() for queue in await call.engine.queues()]}


async def list_limits(call: ApiCall) -> Any:
    """All limits, with their permits in use."""
    return {"limits": [limit.as_dict() for limit in await call.engine.limits()]}


class NodeListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which nodes are listed."""

    all: bool = False
    """Also engines that run no tasks and wait for results."""


async def list_nodes(call: ApiCall) -> Any:
    """All nodes, including dead ones that are not reaped yet."""
    found = await read_overviews(call.engine._store, with_waiting=call.query.all)
    return {"nodes": [node.document() for node in found]}


async def list_providers(call: ApiCall) -> Any:
    """All providers, with their servers and the tasks on them."""
    servers: dict[str, list[Any]] = {}
    for server in await call.engine.servers():
        servers.setdefault(server.provider, []).append(hide_secrets(server.as_dict()))
    return {"providers": [{"name": name, "servers": found} for name, found in servers.items()]}


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the audit is listed."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_AUDITED)] = 100


async def list_audit(call: ApiCall) -> Any:
    """The latest operator actions, newest first: who, when, what, and the outcome."""
    return {"actions": [hide_secrets(action.as_dict()) for action in await call.engine.audit(call.query.limit)]}


async def show_retention(call: ApiCall) -> Any:
    """How long ended tasks are kept."""
    return _retention(await call.engine.retention())


def _retention(retention: Retention) -> dict[str, Any]:
    return {f"{state}_seconds": age for state, age in asdict(retention).items()}


async def show_diagnosis(call: ApiCall) -> Any:
    """The effective configuration, and the problems found. Changes nothing."""
    found = await diagnose(call.engine, app="api", chosen_by="api", described=call.app_engine)
    return hide_secrets(found.as_dict())


# ---------------------------------------------------------------- change


async def pause_queue(call: ApiCall) -> Any:
    """Pause a queue: no node claims its tasks until it is resumed."""
    return {"name": call.path["name"], "changed": await call.engine.pause(call.path["name"])}


async def resume_queue(call: ApiCall) -> Any:
    """Resume a paused queue."""
    name = call.path["name"]
    if name not in {queue.name for queue in await call.engine.queues()}:
        raise Problem(404, f"there is no queue {name!r}")
    return {"name": name, "changed": await call.engine.resume(name)}


class RateValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rate: at most `count` starts in `per`, and up to `burst` at once."""

    count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    per: str | float
    burst: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1


class LimitChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes of a limit. Null removes the value or the rate; a field that is left out stays as it is."""

    value: Count | UnsetType | None = UNSET
    rate: RateValues | UnsetType | None = UNSET


async def set_limit(call: ApiCall) -> Any:
    """Change a limit for the whole cluster, until the code declares another one."""
    name, change = check_any_limit_name(call.path["name"]), call.body
    rate = change.rate
    if isinstance(rate, RateValues):
        rate = Rate(rate.count, per=rate.per, burst=rate.burst)
    await call.engine.set_limit(name, change.value, rate=rate)
    return next(limit.as_dict() for limit in await call.engine.limits() if limit.name == name)


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The capacity of each server, by address. Null means no limit, 0 closes a server."""

    servers: dict[str, Count | None]


async def set_servers(call: ApiCall) -> Any:
    """Replace the pool of a provider for the whole cluster, until the code declares another one."""
    await call.engine.set_servers(call.path["name"], call.body.servers)
    return await _provider(call)


class NewServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server and its capacity. Null means no limit, 0 closes it."""

    address: str
    capacity: Count | None = 1


class ServerAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server of the pool."""

    address: str


async def add_server(call: ApiCall) -> Any:
    """Add a server to the pool of a provider, or change its capacity. Other servers stay as they are."""
    await call.engine.add_server(call.path["name"], call.body.address, call.body.capacity)
    return await _provider(call)


async def remove_server(call: ApiCall) -> Any:
    """Remove a server from the pool of a provider. Tasks on it finish there."""
    await call.engine.remove_server(call.path["name"], call.body.address)
    return await _provider(call)


async def close_server(call: ApiCall) -> Any:
    """Close a server: it stays in the pool, with capacity 0. Tasks on it finish there."""
    await call.engine.close_server(call.path["name"], call.body.address)
    return await _provider(call)


async def _provider(call: ApiCall) -> Any:
    name = call.path["name"]
    found = [server for server in await call.engine.servers() if server.provider == name]
    return {"name": name, "servers": [hide_secrets(server.as_dict()) for server in found]}


async def act_on_node(call: ApiCall, verb: Literal["cordon", "uncordon", "drain", "restart", "stop"]) -> Any:
    """Record an operator action for a node, which the node carries out."""
    node_id = call.path["node_id"]
    await call.engine._control.act_on_node(verb, node_id)
    return {"node_id": node_id, "requested": verb}


async def cordon_node(call: ApiCall) -> Any:
    """Cordon a node: it starts no further task. Its running tasks continue."""
    return await act_on_node(call, "cordon")


async def uncordon_node(call: ApiCall) -> Any:
    """Undo a cordon, and also a drain or restart while the node has not stopped yet."""
    return await act_on_node(call, "uncordon")


async def drain_node(call: ApiCall) -> Any:
    """Cordon a node, and stop it when no task runs on it."""
    return await act_on_node(call, "drain")


async def restart_node(call: ApiCall) -> Any:
    """Like a drain, but the supervisor of the worker starts it again."""
    return await act_on_node(call, "restart")


async def stop_node(call: ApiCall) -> Any:
    """Stop a node in order. Its running tasks get the grace of the node."""
    return await act_on_node(call, "stop")


class Ages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The age of each state, like "7d". Null means for ever; a state that is left out keeps its age."""

    succeeded: str | float | UnsetType | None = UNSET
    failed: str | float | UnsetType | None = UNSET
    cancelled: str | float | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """The ages that were given."""
        return {name: age for name, age in msgspec.structs.asdict(self).items() if age is not UNSET}


async def set_retention(call: ApiCall) -> Any:
    """Change how long all workers keep ended tasks."""
    given = call.body.given()
    if not given:
        raise Problem(400, "give the age of a state: succeeded, failed or cancelled")
    await call.engine.set_retention(replace(await call.engine.retention(), **given))
    return _retention(await call.engine.retention())


class PrunedAges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The age from which tasks in each state are deleted, like "7d". Tasks in a state without an age are kept."""

    succeeded: str | float | UnsetType = UNSET
    failed: str | float | UnsetType = UNSET
    cancelled: str | float | UnsetType = UNSET


async def prune(call: ApiCall) -> Any:
    """Delete old ended tasks now: of the given states and ages, or by the retention of the cluster."""
    ages = msgspec.structs.asdict(call.body)
    retention = Retention(**{state: None if age is UNSET else age for state, age in ages.items()})
    if call.body == PrunedAges():
        retention = await call.engine.retention()
    deleted = await in_time(call.engine._control.prune(retention))
    return {"deleted": deleted, "is_done": deleted is not None}


# ---------------------------------------------------------------- the table

_READ: Final[dict[str, Any]] = {"method": "GET", "role": Role.READ}
_OPERATE: Final[dict[str, Any]] = {"method": "POST", "role": Role.OPERATE}
_ADMIN: Final[dict[str, Any]] = {"method": "POST", "role": Role.ADMIN}
_POOL: Final[dict[str, Any]] = {**_ADMIN, "answer": documents.Provider, "problems": (404,)}
_NODE: Final[dict[str, Any]] = {**_ADMIN, "answer": documents.Requested, "problems": (404,), "status": 202}

ROUTES: Final = (
    Route(method="GET", role=Role.NONE, path="/user", handle=show_caller, answer=documents.Caller),
    Route(**_READ, path="/status", handle=show_status, answer=ClusterStatus),
    Route(**_READ, path="/queues", handle=list_queues, answer=documents.Queues),
    Route(**_OPERATE, path="/queues/{name:path}/pause", handle=pause_queue, answer=documents.IsChanged),
    Route(
        **_OPERATE, path="/queues/{name:path}/resume", handle=resume_queue, answer=documents.IsChanged, problems=(404,)
    ),
    Route(**_READ, path="/limits", handle=list_limits, answer=documents.Limits),
    Route(
        **_ADMIN, path="/limits/{name:path}", handle=set_limit, body=LimitChange, answer=LimitRecord, problems=(404,)
    ),
    Route(**_READ, path="/nodes", handle=list_nodes, query=NodeListQuery, answer=documents.Nodes),
    Route(**_NODE, path="/nodes/{node_id}/cordon", handle=cordon_node),
    Route(**_NODE, path="/nodes/{node_id}/uncordon", handle=uncordon_node),
    Route(**_NODE, path="/nodes/{node_id}/drain", handle=drain_node),
    Route(**_NODE, path="/nodes/{node_id}/restart", handle=restart_node),
    Route(**_NODE, path="/nodes/{node_id}/stop", handle=stop_node),
    Route(**_READ, path="/providers", handle=list_providers, answer=documents.Providers),
    Route(**_POOL, path="/providers/{name}/servers", handle=set_servers, body=Pool),
    Route(**_POOL, path="/providers/{name}/servers/add", handle=add_server, body=NewServer),
    Route(**_POOL, path="/providers/{name}/servers/remove", handle=remove_server, body=ServerAddress),
    Route(**_POOL, path="/providers/{name}/servers/close", handle=close_server, body=ServerAddress),
    Route(**_READ, path="/audit", handle=list_audit, query=AuditQuery, answer=documents.Audit),
    Route(**_READ, path="/retention", handle=show_retention, answer=documents.RetentionDocument),
    Route(**_ADMIN, path="/retention", handle=set_retention, body=Ages, answer=documents.RetentionDocument),
    Route(**_ADMIN, path="/prune", handle=prune, body=PrunedAges, answer=documents.Pruned, is_long=True),
    Route(method="GET", role=Role.ADMIN, path="/doctor", handle=show_diagnosis, answer=documents.DiagnosisDocument),
)
