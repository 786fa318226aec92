"""`python -m tests.chaos --minutes 10 [--seed 7] [--store postgres] [--store sqlite]`: everything at once.

Prints the seed, each fault as it happens, and the auditor's verdict; 1 if a promise was broken. The seed gives the same
faults in the same order; what they meet depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.chaos.arena import EXPECTED_EXITS, Arena
from tests.chaos.auditor import audit, recoveries
from tests.chaos.databases import Database, PostgresDatabase, SqliteDatabase, postgres_server, start_pooler
from tests.chaos.faults import Tormentor, faults_of, plan
from tests.pgbouncer_server import MISSING, find_program

PLACES: Final = 3
LEASE_SECONDS: Final = 3.0
MOST_FINDINGS: Final = 40


def main() -> int:
    """Run it on each store in turn."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long, on each store")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="which faults, in which order")
    parser.add_argument("--store", action="append", choices=("postgres", "sqlite"), help="only this one")
    parser.add_argument("--a-second", type=float, default=40, help="how many tasks are enqueued in a second")
    options = parser.parse_args()
    broken = 0
    for store in options.store or ("postgres", "sqlite"):
        print(f"{store}: seed {options.seed}, {options.minutes:g} minutes", flush=True)
        broken += asyncio.run(run(store, options.seed, options.minutes * 60, options.a_second))
    return int(broken > 0)


async def run(store: str, seed: int, seconds: float, a_second: float) -> int:
    """One chaos; how many promises were broken."""
    folder = Path(tempfile.mkdtemp(prefix=f"synergon-chaos-{store}-"))
    database: Database = postgres_database() if store == "postgres" else SqliteDatabase(folder)
    async with Arena(folder, database, lease=LEASE_SECONDS, schedules=3) as arena:
        await arena.start_nodes(PLACES)
        for number in range(len(database.urls)):
            arena.start_producer(seed + number, a_second=a_second / len(database.urls))
        tormentor = Tormentor(arena, lambda words: print(words, flush=True))
        names = list(faults_of(database))
        await tormentor.carry_out(plan(seed, names, seconds=seconds, places=PLACES, lease=LEASE_SECONDS))
        began = time.monotonic()
        await arena.drained()
        print(f"drained after {time.monotonic() - began:.1f} s")
        findings = report(arena, tormentor)
        await arena.check_that_all_end_in_order()
        await arena.check_that_nothing_is_left()
    print(f"{store}, seed {seed}: {f'{len(findings)} promises broken' if findings else 'every promise was kept'}")
    print(f"logs: {folder}", flush=True)
    return len(findings)


def postgres_database() -> PostgresDatabase:
    """A server and, where it is installed, a PgBouncer before it, which some nodes and producers go through."""
    if find_program() is None:
        print(f"all connect to the server itself: {MISSING}")
        return PostgresDatabase()
    server = postgres_server()
    return PostgresDatabase(server, start_pooler(server, f"host={server.folder}", server.folder.owner()))


def report(arena: Arena, tormentor: Tormentor) -> list[str]:
    """Say what was done, and what the auditor found."""
    evidence = arena.evidence()
    findings = audit(evidence)
    findings += [f"a node ended with code {code}" for code in arena.exits if code not in EXPECTED_EXITS]
    findings += [f"a node said {words!r}" for words in arena.unexpected_words()]
    ends = Counter(f"{row.state}{f'({row.reason})' if row.reason else ''}" for row in evidence.rows)
    waits = sorted(recoveries(evidence)) or [0.0]
    print(f"{len(evidence.accepted)} tasks accepted, {len(evidence.rows)} in all, {dict(ends)}")
    print(
        f"{len({(line.task_id, line.claim_no) for line in evidence.lines})} executions, deeds {dict(tormentor.deeds)}"
    )
    print(f"{arena.starts} nodes started, exits {dict(arena.exits)}, {len(evidence.pauses)} pauses, {arena.lies} lies")
    longest = max((outage.seconds for outage in evidence.outages), default=0.0)
    print(f"{len(evidence.outages)} outages, as made and as met by a probe, up to {longest:.1f} s")
    print(
        f"{len(waits)} executions cut off by the end of their node ran again after {waits[0]:.2f} to {waits[-1]:.2f} s"
    )
    for finding in findings[:MOST_FINDINGS]:
        print(f"BROKEN: {finding}")
    return findings


if __name__ == "__main__":
    sys.exit(main())
