"""Providers and their servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewProvider, NewServer, ServerRecord
from synergon.model.outcomes import ErrorRecord
from synergon.stores.postgres import finish
from synergon.stores.postgres.follow_ups import draw
from synergon.stores.postgres.session import Session
from synergon.stores.rules.shared_capacity import ServerCapacity


async def declare(session: Session, providers: Sequence[NewProvider]) -> None:
    """What the code says of providers, where it says otherwise than before; the consequences are the caller's."""
    names = [provider.name for provider in providers]
    known = {row["name"]: row["declared"] for row in await session.rows("declared_providers", names)} if names else {}
    for provider in sorted(providers, key=lambda provider: provider.name):
        declared = _declared(provider)
        if known.get(provider.name) == declared:
            continue
        backoff = (provider.backoff_after, provider.backoff_first, provider.backoff_cap)
        if await session.run("declare_provider", provider.name, declared, *backoff) == 1:
            await _replace(session, provider.name, provider.servers)


def _declared(provider: NewProvider) -> str:
    servers = tuple(sorted(provider.servers, key=lambda server: server.address))
    return msgspec.json.encode(msgspec.structs.replace(provider, servers=servers)).decode()


async def set_servers(session: Session, provider: str, servers: Sequence[NewServer]) -> bool:
    """The pool from now on; False: nobody has declared the provider."""
    if await session.row("lock_provider", provider) is None:
        return False
    await _replace(session, provider, servers)
    await draw(session)
    return True


async def _replace(session: Session, provider: str, servers: Iterable[NewServer]) -> None:
    """Whoever counts what the servers have is waited for."""
    await session.rows("lock_pools", [provider])
    capacities = {server.address: server.capacity for server in servers}
    await session.run("drop_servers", provider, list(capacities))
    await session.run("add_servers", provider, list(capacities), list(capacities.values()))
    for row in await session.rows("stranded_commands", provider, list(capacities)):
        message = f"{row['target']} is no server of {provider} any more, so the command was not given to it"
        error = ErrorRecord(attempt=0, type="ServerRemoved", message=message)
        await session.run("set_errors", row["id"], await finish.appended(session, row, error))
        session.touch(row["kind"], row["limit_key"], row["group_id"])
        await finish.end(session, {row["id"]: None}, State.FAILED, Reason.ERROR)


class Pools(NamedTuple):
    """The servers of some providers, and what their health lets them take."""

    servers: list[ServerCapacity]
    prefixes: list[str]
    """The names of limits that may cover some of them."""


async def lock_pools(session: Session, providers: Iterable[str]) -> Pools:
    """Nobody else fills these servers until the commit."""
    rows = await session.rows("lock_pools", sorted(providers))
    return Pools([_pooled(row) for row in rows], rows[0]["prefixes"] if rows else [])


def _pooled(row: Any) -> ServerCapacity:
    is_suspect = row["backoff_after"] is not None and row["failures"] >= row["backoff_after"]
    return ServerCapacity(
        row["provider"],
        row["address"],
        row["capacity"],
        is_backed_off=row["is_backed_off"],
        is_on_trial=is_suspect and not row["is_backed_off"],
    )


async def servers(session: Session) -> list[ServerRecord]:
    """All servers, and removed ones that still have work."""
    used = {(provider, address): count for provider, address, count in await session.rows("used_servers")}
    records = [
        ServerRecord(
            provider=row["provider"],
            address=row["address"],
            capacity=row["capacity"],
            in_use=used.pop((row["provider"], row["address"]), 0),
            failures=row["failures"],
            backs_off_until=row["backs_off_until"],
        )
        for row in await session.rows("servers")
    ]
    records += [
        ServerRecord(provider=provider, address=address, capacity=0, in_use=count, is_removed=True)
        for (provider, address), count in used.items()
    ]
    return sorted(records, key=lambda record: (record.provider, record.address))
