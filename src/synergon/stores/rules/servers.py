"""Providers and their servers: stores the pools that the code declares and that operators set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewProvider, NewServer, ServerRecord
from synergon.model.outcomes import ErrorRecord
from synergon.model.record import to_datetime
from synergon.stores.rules import ends
from synergon.stores.rules.finish import append_error
from synergon.stores.rules.follow_ups import apply_follow_ups
from synergon.stores.rules.shared_servers import CountedTwice, NamedServer, counted_twice
from synergon.stores.session import Session


async def is_declared(session: Session, providers: Sequence[NewProvider]) -> bool:
    """Whether all these providers equal the last declaration."""
    declared = {provider.name: _as_json(provider) for provider in providers}
    return not declared or await session.servers.declared(declared) == declared


async def declare(session: Session, providers: Sequence[NewProvider]) -> None:
    """Store the providers that the code declares, unless they equal the last declaration. The caller calls
    `follow_ups.apply_follow_ups` afterwards."""
    declared = {provider.name: _as_json(provider) for provider in providers}
    known = await session.servers.declared(declared) if declared else {}
    for provider in sorted(providers, key=lambda provider: provider.name):
        name = provider.name
        if known.get(name) != declared[name] and await session.servers.declare(provider, declared[name]):
            await _replace(session, name, provider.servers)


def _as_json(provider: NewProvider) -> str:
    """The declaration as JSON. Servers are sorted, so that their order makes no difference."""
    servers = tuple(sorted(provider.servers, key=lambda server: server.address))
    return msgspec.json.encode(msgspec.structs.replace(provider, servers=servers)).decode()


async def set_servers(session: Session, provider: str, pool: Sequence[NewServer]) -> bool:
    """Replace the pool of a provider. False if the provider is not declared."""
    if not await session.servers.lock_provider(provider):
        return False
    await _replace(session, provider, pool)
    await apply_follow_ups(session)
    return True


async def locked_pool(session: Session, provider: str) -> list[NewServer] | None:
    """Lock a provider, and read its pool, by address. None if the provider is not declared."""
    if not await session.servers.lock_provider(provider):
        return None
    rows = [row for row in await session.servers.all() if row.provider == provider]
    return [NewServer(address=row.address, capacity=row.capacity) for row in sorted(rows, key=lambda row: row.address)]


async def counted_twice_in(session: Session, provider: str, pool: Iterable[NewServer]) -> CountedTwice | None:
    """A server of this pool that another provider names, too, and that no limit covers. None if there is no such
    server, or if the provider is not declared."""
    if not await session.servers.lock_provider(provider):
        return None
    others = [
        NamedServer(row.provider, row.address, row.capacity)
        for row in await session.servers.all()
        if row.provider != provider
    ]
    own = (NamedServer(provider, server.address, server.capacity) for server in pool)
    return next(counted_twice([*others, *own], [limit.name for limit in await session.limits.all()]), None)


async def _replace(session: Session, provider: str, pool: Iterable[NewServer]) -> None:
    """Replace the pool, and end the commands for removed servers that do not run yet."""
    capacities = {server.address: server.capacity for server in pool}
    await session.servers.replace(provider, capacities)
    targets = await session.servers.commands_without_server(provider, capacities)
    if not targets:
        return
    commands = await session.tasks.live(targets)
    commands_without_server = [command for command in commands.values() if command.state is not State.RUNNING]
    for command in commands_without_server:
        message = f"{targets[command.id]} is no server of {provider} any more, so the command was not given to it"
        await append_error(session, command, ErrorRecord(attempt=0, type="ServerRemoved", message=message))
    if commands_without_server:
        await ends.end(session, commands_without_server, State.FAILED, Reason.ERROR)


async def servers(session: Session) -> list[ServerRecord]:
    """All servers, by provider and address, including removed ones that tasks still run on."""
    used = {(server.provider, server.address): server.count for server in await session.servers.used()}
    records = [
        ServerRecord(
            provider=row.provider,
            address=row.address,
            capacity=row.capacity,
            in_use=used.pop((row.provider, row.address), 0),
            failures=row.failures,
            recent_failures=row.recent.bit_count(),
            backs_off_until=None if row.backs_off_until is None else to_datetime(row.backs_off_until),
            has_probe=row.is_probed,
        )
        for row in await session.servers.all()
    ]
    records += [
        ServerRecord(provider=provider, address=address, capacity=0, in_use=count, is_removed=True)
        for (provider, address), count in used.items()
    ]
    return sorted(records, key=lambda record: (record.provider, record.address))
