"""The pages of the cluster: nodes, providers and limits, the audit."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, Final

from synergon.model.lifecycle import State
from synergon.model.limits import failure_text
from synergon.web import cluster_routes, task_routes
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.dashboard.text import moment, relative
from synergon.web.routes import ApiCall

MOST_ACTIONS: Final = 200
MOST_RUNNING: Final = 200
MOST_RUNNING_ON_NODE: Final = 5


async def list_nodes(call: ApiCall) -> Page:
    """The page of nodes."""
    found = await asked(call, cluster_routes.list_nodes, cluster_routes.NodeListQuery())
    running = await asked(
        call, task_routes.list_tasks, task_routes.TaskListQuery(state=(State.RUNNING,), limit=MOST_RUNNING)
    )
    by_node: defaultdict[str, list[Any]] = defaultdict(list)
    for task in running["tasks"]:
        by_node[task["node_id"]].append(task)
    nodes = [
        {**node, "bars": _bars(node), "tasks": by_node[node["id"]][:MOST_RUNNING_ON_NODE]} for node in found["nodes"]
    ]
    return Page("nodes.html", "Nodes", {"nodes": nodes})


def _bars(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The slots and resources of a node: in use and in total."""
    found = [{"name": "slots", "in_use": node["running"], "of": node["concurrency"], "is_bytes": False}]
    for name, total in node["resources"].items():
        if isinstance(total, int | float) and name != "slots" and total > 0:
            free = node["resources_free"].get(name, 0)
            is_bytes = name.endswith("_bytes")
            label = name.removesuffix("_bytes").replace("_", " ")
            found.append({"name": label, "in_use": max(total - free, 0), "of": total, "is_bytes": is_bytes})
    return found


async def list_providers(call: ApiCall) -> Page:
    """The page of providers and limits."""
    providers = await asked(call, cluster_routes.list_providers)
    limits = await asked(call, cluster_routes.list_limits)
    return Page(
        "providers.html",
        "Providers and limits",
        {
            "providers": [_provider(provider) for provider in providers["providers"]],
            "limits": [_limit(limit) for limit in limits["limits"]],
        },
    )


def _provider(provider: dict[str, Any]) -> dict[str, Any]:
    """A provider for the page. Each server that is out of service has a text that says why and until when."""
    servers = [
        {**server, "trouble": _trouble(server), "fields": {name: server[name] for name in ("address", "capacity")}}
        for server in provider["servers"]
    ]
    return {**provider, "servers": servers}


def _trouble(server: dict[str, Any]) -> str | None:
    """Why a server is out of service. None if it is in service."""
    until = moment(server["backs_off_until"])
    if until is None:
        return None
    why = failure_text(server["failures"], server["recent_failures"])
    if server["has_probe"]:
        return f"{why}; the next probe is due {relative(until)}"
    return f"{why}; on trial" if until <= datetime.now(UTC) else f"{why}; it gets tasks again {relative(until)}"


def _limit(limit: dict[str, Any]) -> dict[str, Any]:
    """A limit, with what it counts and its rate as text."""
    scope, _, name = (
        limit["name"].rpartition(":") if limit["name"].startswith(("kind:", "key:")) else ("", "", limit["name"])
    )
    rate = limit["rate"]
    per = None if rate is None else f"{rate['per'] / 1_000_000:g}"
    return {
        **limit,
        "fields": {
            "value": limit["value"],
            "rate.count": rate and rate["starts"],
            "rate.per": per and f"{per}s",
            "rate.burst": rate and rate["burst"],
        },
        "label": name,
        "counts": {"kind": "tasks of the kind", "key": "tasks of each key of the kind"}.get(
            scope, "tasks that hold it"
        ),
        "rate_text": None if rate is None else f"{rate['starts']} per {per} s",
    }


async def list_audit(call: ApiCall) -> Page:
    """The page of the audit."""
    found = await asked(call, cluster_routes.list_audit, cluster_routes.AuditQuery(limit=MOST_ACTIONS))
    return Page("audit.html", "Audit", {"actions": found["actions"], "most": MOST_ACTIONS})


PAGES: Final = (
    page("/nodes", list_nodes),
    page("/providers", list_providers),
    page("/audit", list_audit),
)
