"""Providers and their servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewProvider, NewServer, ServerRecord
from synergon.model.outcomes import ErrorRecord
from synergon.model.record import to_datetime
from synergon.stores.rules.shared_capacity import ServerCapacity
from synergon.stores.sqlite import finish
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.transaction import Transaction, as_json


def declare(transaction: Transaction, provider: NewProvider) -> None:
    """What the code says of a provider, if it says otherwise than before."""
    servers = tuple(sorted(provider.servers, key=lambda server: server.address))
    declared = msgspec.json.encode(msgspec.structs.replace(provider, servers=servers)).decode()
    known = transaction.row("provider", provider.name)
    if known is not None and known[0] == declared:
        return
    backoff = (provider.backoff_after, provider.backoff_first, provider.backoff_cap)
    transaction.run("declare_provider", provider.name, declared, *backoff)
    _replace(transaction, provider.name, servers)


def set_servers(transaction: Transaction, provider: str, servers: Sequence[NewServer]) -> bool:
    """The pool from now on; False: nobody has declared the provider."""
    if transaction.row("provider", provider) is None:
        return False
    _replace(transaction, provider, servers)
    draw(transaction)
    return True


def _replace(transaction: Transaction, provider: str, servers: Iterable[NewServer]) -> None:
    capacities = {server.address: server.capacity for server in servers}
    addresses = as_json(capacities)
    transaction.run("drop_servers", provider, addresses)
    for address, capacity in capacities.items():
        transaction.run("add_server", provider, address, capacity)
    for task_id, target in transaction.rows("stranded_commands", provider, addresses):
        message = f"{target} is no server of {provider} any more, so the command was not given to it"
        finish.append_error(transaction, task_id, ErrorRecord(attempt=0, type="ServerRemoved", message=message))
        finish.end(transaction, [task_id], State.FAILED, Reason.ERROR)


def pool(transaction: Transaction, providers: Iterable[str]) -> list[ServerCapacity]:
    """The servers of these providers, and what their health lets them take."""
    return [_pooled(transaction.now, *row) for row in transaction.rows("pool", as_json(providers))]


def _pooled(
    now: int,
    provider: str,
    address: str,
    capacity: int | None,
    failures: int,
    backs_off_until: int | None,
    backoff_after: int | None,
) -> ServerCapacity:
    is_backed_off = backs_off_until is not None and backs_off_until > now
    is_suspect = backoff_after is not None and failures >= backoff_after
    return ServerCapacity(provider, address, capacity, is_backed_off, is_on_trial=is_suspect and not is_backed_off)


def servers(transaction: Transaction) -> list[ServerRecord]:
    """All servers, and removed ones that still have work."""
    used = {(provider, address): count for provider, address, count in transaction.rows("used_servers")}
    records = [
        ServerRecord(
            provider=provider,
            address=address,
            capacity=capacity,
            in_use=used.pop((provider, address), 0),
            failures=failures,
            backs_off_until=to_datetime(backs_off_until) if backs_off_until is not None else None,
        )
        for provider, address, capacity, failures, backs_off_until in transaction.rows("servers")
    ]
    records += [
        ServerRecord(provider=provider, address=address, capacity=0, in_use=count, is_removed=True)
        for (provider, address), count in used.items()
    ]
    return sorted(records, key=lambda record: (record.provider, record.address))
