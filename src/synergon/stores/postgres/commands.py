"""Commands that may be taken: they are for a provider, whatever their queue, and go before all tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.stores.postgres.choice import ready_task
from synergon.stores.postgres.session import Session
from synergon.stores.rules.claim_plan import ReadyTask
from synergon.stores.rules.shared_capacity import SharedCapacity


async def ready_commands(
    session: Session,
    request: ClaimRequest,
    kind_requests: Iterable[KindRequest],
    allotment: SharedCapacity,
    *,
    limit: int,
    without: Collection[int] = (),
) -> list[ReadyTask]:
    """The first of each of these kinds and servers. Those for servers that have no room are left out: however many
    they are, they hide nobody."""
    kind_requests = [
        kind_request for kind_request in kind_requests if kind_request.is_command and kind_request.count > 0
    ]
    providers = {kind_request.provider for kind_request in kind_requests if kind_request.provider is not None}
    servers = {name: allotment.open_servers(name) for name in sorted(providers)}
    kind_requests = [
        kind_request
        for kind_request in kind_requests
        if kind_request.provider is None or servers[kind_request.provider]
    ]
    if not kind_requests:
        return []
    is_open = [(name, address) for name, found in servers.items() for address in found]
    rows = await session.rows(
        "ready_commands",
        [kind_request.kind for kind_request in kind_requests],
        [kind_request.provider for kind_request in kind_requests],
        limit,
        [name for name, _ in is_open],
        [address for _, address in is_open],
        sorted(without),
        request.patience,
        request.node_id,
    )
    return [ready_task(row) for row in rows]
