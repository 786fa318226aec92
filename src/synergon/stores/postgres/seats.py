"""The claim where limits, servers, rates or commands have a say: a transaction of a few steps.

The rows of the limits and servers that apply are locked first, then what running tasks hold is counted by later
statements, so it stays true until the commit. What a task holds is written into its row when it is taken, and nowhere
else: usage is the number of running rows that name it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from synergon.addresses import covers
from synergon.records import Claim, ClaimRequest, Room
from synergon.stores.allotting import Allotment, Candidate, Holding, PooledServer, Seat
from synergon.stores.postgres import pools
from synergon.stores.postgres.claiming import Run, in_order, lease_lost
from synergon.stores.postgres.consequences import draw
from synergon.stores.postgres.contention import Contention, RowHeld
from synergon.stores.postgres.limiting import split
from synergon.stores.postgres.lines import charge_starts
from synergon.stores.postgres.locking import OF_LINES, terms_of
from synergon.stores.postgres.session import Session, Terms

LOOKED_AT: Final = 1000
"""Tasks that are for certain servers: behind one that cannot run now there may be one that can."""
LOOKS: Final = 8
PATIENT_LOOKS: Final = 3
MOST_PROBES: Final = 64
PAUSE_SECONDS: Final = 0.01


class Taken(NamedTuple):
    """A task that is chosen, and what it will hold."""

    candidate: Candidate
    seat: Seat


async def claim_seats(write: Run, statement: Run, request: ClaimRequest) -> list[Claim]:
    """Take the first ready tasks in order that have a place in everything they need; commands before all else.

    `write` makes a transaction of a piece of work, `statement` one of a single statement. Where a row that somebody
    holds is an error, it is looked again, and in the end without those rows.
    """
    held: set[int] = set()
    for number in range(LOOKS):
        wanted: list[int] = []
        try:
            rows: list[Any] = await write(take, request, held, wanted)
        except RowHeld:
            await asyncio.sleep(PAUSE_SECONDS * random.random())
            if number >= PATIENT_LOOKS:
                held |= await _find_held(statement, wanted)
        else:
            return in_order(rows, {room.kind for room in request.rooms if room.is_command})
    return []


async def _find_held(statement: Run, ids: Sequence[int]) -> set[int]:
    held: set[int] = set()
    for task_id in ids[:MOST_PROBES]:
        try:
            await statement(_probe, task_id)
        except RowHeld:
            held.add(task_id)
    return held


async def _probe(session: Session, task_id: int) -> None:
    await session.rows("lock_ready", [task_id])


async def take(session: Session, request: ClaimRequest, held: set[int], wanted: list[int]) -> list[Any]:
    """One claim. Rows that others were quicker to take are passed over, and it is chosen again among the rest.

    `wanted` tells what it tried to take last, should that be refused.
    """
    values, servers = await _lock(session, request)
    if await session.row("lease", request.node_id) is None:
        raise lease_lost(request.node_id)
    taken: list[Any] = []
    passed_over = set(held)
    for _ in range(LOOKS):
        rest = _rest(request, taken)
        chosen = await _look(session, rest, await _allotment(session, rest, values, servers), passed_over)
        if not chosen:
            break
        wanted[:] = [entry.candidate.id for entry in chosen]
        is_ours = {row["id"] for row in await session.rows("lock_ready", wanted)}
        if is_ours:
            taken += await _sit(session, request.node_id, [one for one in chosen if one.candidate.id in is_ours])
        if len(is_ours) == len(wanted):
            break
        passed_over.update(set(wanted) - is_ours)
    await _charge(session, request, taken)
    return taken


def _rest(request: ClaimRequest, taken: Sequence[Any]) -> ClaimRequest:
    """What there is still room for."""
    if not taken:
        return request
    by_kind = Counter(row["kind"] for row in taken)
    rooms = tuple(replace(room, count=room.count - by_kind[room.kind]) for room in request.rooms)
    others = sum(by_kind[room.kind] for room in request.rooms if not room.is_command)
    return replace(request, rooms=rooms, limit=request.limit - others)


# ---------------------------------------------------------------- what is locked and counted


async def _lock(session: Session, request: ClaimRequest) -> tuple[dict[str, int | None], list[PooledServer]]:
    """Lock the limits and servers that have a say; what the limits allow, and the servers."""
    providers = {room.provider for room in request.rooms if room.provider is not None}
    names = {name for room in request.rooms for name in room.limits}
    rated = {room.kind for room in request.rooms if room.is_rated}
    prefixes = [row["name"] for row in await session.rows("prefixes")] if providers else []
    if prefixes:
        addresses = [row["address"] for row in await session.rows("addresses", sorted(providers))]
        names |= _covering(prefixes, addresses)
    wanted = names | {OF_LINES + kind for kind in rated}
    rows = await session.rows("lock_limits", sorted(wanted)) if wanted else []
    session.terms.update(dict.fromkeys(rated, Terms()) | terms_of(rows))
    servers = await pools.lock_pools(session, providers) if providers else []
    if not _covering(prefixes, [server.address for server in servers]) <= names:
        raise Contention("the pool has changed between the look and the lock")
    return {row["name"]: row["value"] for row in rows if row["name"] in names}, servers


def _covering(prefixes: Iterable[str], addresses: Iterable[str]) -> set[str]:
    places = list(addresses)
    return {prefix for prefix in prefixes if any(covers(prefix, place) for place in places)}


async def _allotment(
    session: Session, request: ClaimRequest, values: dict[str, int | None], servers: Sequence[PooledServer]
) -> Allotment:
    if not servers and not any(room.limits for room in request.rooms):
        return Allotment({}, (), ())  # rates and commands alone: nothing has to be counted
    holdings = [Holding(split(holds), *where) for holds, *where in await session.rows("holdings")]
    for server in servers:
        server.slots.clear()
    return Allotment(values, servers, holdings)


# ---------------------------------------------------------------- who is taken


async def _look(session: Session, request: ClaimRequest, allotment: Allotment, without: set[int]) -> list[Taken]:
    candidates = await _commands(session, request, allotment, without)
    candidates += await _tasks(session, request, allotment, without)
    return list(_choose(request, allotment, candidates))


def _choose(request: ClaimRequest, allotment: Allotment, candidates: Sequence[Candidate]) -> Iterator[Taken]:
    rooms = {room.kind: room for room in request.rooms}
    left = Counter({room.kind: room.count for room in request.rooms})
    others = request.limit
    for candidate in candidates:
        room = rooms[candidate.kind]
        if left[room.kind] <= 0 or (others <= 0 and not room.is_command):
            continue
        seat = allotment.take(room, candidate)
        if seat is not None:
            left[room.kind] -= 1
            others -= not room.is_command
            yield Taken(candidate, seat)


async def _commands(
    session: Session, request: ClaimRequest, allotment: Allotment, without: set[int]
) -> list[Candidate]:
    """Those for servers that have no room are left out: however many they are, they hide nobody."""
    rooms = [room for room in request.rooms if room.is_command and room.count > 0]
    providers = {room.provider for room in rooms if room.provider is not None}
    servers = {name: allotment.open_servers(name) for name in sorted(providers)}
    rooms = [room for room in rooms if room.provider is None or servers[room.provider]]
    if not rooms:
        return []
    is_open = [(name, address) for name, found in servers.items() for address in found]
    rows = await session.rows(
        "ready_commands",
        [room.kind for room in rooms],
        [room.provider for room in rooms],
        LOOKED_AT,
        [name for name, _ in is_open],
        [address for _, address in is_open],
        sorted(without),
    )
    return sorted(map(_candidate, rows), key=lambda candidate: candidate.id)


async def _tasks(session: Session, request: ClaimRequest, allotment: Allotment, without: set[int]) -> list[Candidate]:
    rooms = [room for room in request.rooms if not room.is_command]
    most = {room.kind: min(allotment.most(room), request.limit) for room in rooms}
    most = {kind: count for kind, count in most.items() if count > 0}
    found = await _first(session, request, most, without)
    if again := _with_targets(rooms, most, found):
        found = [one for one in found if one.kind not in again] + await _first(session, request, again, without)
    return sorted(found, key=lambda candidate: (-candidate.priority, candidate.id))


def _with_targets(rooms: Iterable[Room], most: dict[str, int], found: Sequence[Candidate]) -> dict[str, int]:
    """Where some want a certain server, others behind them may be content with another one."""
    picky = {one.kind for one in found if one.target is not None}
    numbers = Counter(one.kind for one in found)
    return {
        room.kind: max(most[room.kind], LOOKED_AT)
        for room in rooms
        if room.provider is not None and room.kind in picky and numbers[room.kind] >= most[room.kind]
    }


async def _first(session: Session, request: ClaimRequest, most: dict[str, int], without: set[int]) -> list[Candidate]:
    if not most:
        return []
    queues = sorted(request.queues) if request.queues is not None else None
    counts = list(most.values())
    rows = await session.rows("ready", list(most), counts, queues, max(counts), sorted(without))
    return [_candidate(row) for row in rows]


def _candidate(row: Any) -> Candidate:
    """A retry avoids the server of the attempt before."""
    avoid = row["server"] if row["attempts"] > 0 else None
    return Candidate(row["id"], row["priority"], row["kind"], row["target"], avoid)


# ---------------------------------------------------------------- they sit down


async def _sit(session: Session, node_id: str, chosen: Iterable[Taken]) -> list[Any]:
    chosen = sorted(chosen, key=lambda entry: entry.candidate.id)
    return await session.rows(
        "take_seats",
        node_id,
        [entry.candidate.id for entry in chosen],
        [_holds(entry.seat) for entry in chosen],
        [entry.seat.provider for entry in chosen],
        [entry.seat.server for entry in chosen],
        [entry.seat.slot for entry in chosen],
    )


def _holds(seat: Seat) -> str | None:
    return "\n".join(seat.limits) if seat.limits or seat.provider is not None else None


async def _charge(session: Session, request: ClaimRequest, taken: Sequence[Any]) -> None:
    rated = {room.kind for room in request.rooms if room.is_rated}
    started = Counter(
        (row["kind"], row["limit_key"]) for row in taken if row["kind"] in rated and row["limit_key"] is not None
    )
    if started:
        await charge_starts(session, started)
        await draw(session)
