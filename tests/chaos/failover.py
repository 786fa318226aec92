"""`python -m tests.chaos.failover --rounds 3 [--seed 7] [--form direct] [--loss stop]`: the primary is lost under load.

Producers and nodes work on a primary with a synchronous standby. In each round the primary is lost, the standby takes
its place, and what was lost comes back as the next standby. In the form `direct` the URL names both servers. In the
form `pgbouncer` it names a PgBouncer, which is told of the new primary. Prints how long producers waited, and the
auditor's verdict; 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.chaos import journal
from tests.chaos.arena import Arena
from tests.chaos.auditor import audit
from tests.chaos.databases import PostgresDatabase, start_pooler
from tests.chaos.evidence import Outage
from tests.chaos.replication import Loss, ReplicatedServer
from tests.cluster.support import until
from tests.pgbouncer_server import MISSING, PgBouncer, find_program

FORMS: Final = ("direct", "pgbouncer")
PLACES: Final = 3
LEASE_SECONDS: Final = 30.0
PRODUCERS: Final = 2
PATIENCE_SECONDS: Final = 90.0
TIMEOUT_SECONDS: Final = 5
"""The `timeout` of the URL: how long a call waits for a server that is silent."""


class Failover:
    """An arena whose database can be lost: a primary, its standby and, in that form, a PgBouncer before them."""

    def __init__(self, arena: Arena, server: ReplicatedServer, pooler: PgBouncer | None) -> None:
        self.arena = arena
        self.waits: list[float] = []
        """How long each producer waited in each round."""
        self._server = server
        self._pooler = pooler

    async def lose_primary(self, loss: Loss) -> None:
        """Lose it under load, and return when every producer is served again."""
        before = await self._served_since(time.monotonic())
        async with self.arena.outage():
            await asyncio.to_thread(self._server.fail_over, loss)
            if self._pooler is not None:
                self._pooler.lead_to(_target(self._server))
        await self._served_since(time.monotonic())
        self.waits += _waits(self.arena.folder, Outage(before, self.arena.outages[-1].ended))

    async def restore_standby(self) -> None:
        """Be ready for the next loss."""
        await asyncio.to_thread(self._server.restore_standby)

    async def _served_since(self, moment: float) -> float:
        """Return when each producer has been given something after that moment; when that was."""
        pids = {producer.pid for producer in self.arena.producers}

        def are_served() -> bool:
            return pids == {one.pid for one in journal.acceptances(self.arena.folder) if one.at > moment}

        await until("every producer is served", are_served, PATIENCE_SECONDS)
        return time.monotonic()


def _target(server: ReplicatedServer) -> str:
    return f"host=127.0.0.1 port={server.primary.port}"


def _waits(folder: Path, outage: Outage) -> list[float]:
    """The longest time that each producer waited from one answer to the next about that time."""
    answers: dict[int, list[float]] = defaultdict(list)
    for acceptance in journal.acceptances(folder):
        answers[acceptance.pid].append(acceptance.at)
    return [
        max(later - earlier for earlier, later in pairwise(times) if later > outage.began) for times in answers.values()
    ]


@asynccontextmanager
async def failover(
    server: ReplicatedServer, folder: Path, forms: Sequence[str], places: int
) -> AsyncIterator[Failover]:
    """Nodes on these servers, ready for producers; the forms take turns."""
    pooler = None
    if "pgbouncer" in forms:
        pooler = start_pooler(server, _target(server), server.primary.folder.owner())
    try:
        database = PostgresDatabase(server, pooler, is_only_pooled="direct" not in forms)
        database.urls = [f"{url}&timeout={TIMEOUT_SECONDS}" for url in database.urls]
        async with Arena(folder, database, lease=LEASE_SECONDS) as arena:
            await arena.start_nodes(places)
            yield Failover(arena, server, pooler)
    finally:
        if pooler is not None:
            pooler.close()


# ------------------------------------------------------------ the program


def main() -> int:
    """Run each form in turn."""
    parser = argparse.ArgumentParser(prog="tests.chaos.failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often the primary is lost, in each form")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="which tasks")
    parser.add_argument("--form", action="append", choices=FORMS, help="only this one")
    parser.add_argument("--loss", action="append", choices=[loss.name.lower() for loss in Loss], help="only this one")
    parser.add_argument("--a-second", type=float, default=60, help="how many tasks a producer enqueues in a second")
    options = parser.parse_args()
    losses = [Loss[name.upper()] for name in options.loss or [loss.name for loss in Loss]]
    broken = 0
    for form in options.form or FORMS:
        if form == "pgbouncer" and find_program() is None:
            print(f"pgbouncer: left out; {MISSING}")
            continue
        print(f"{form}: seed {options.seed}, {options.rounds} rounds", flush=True)
        broken += asyncio.run(run(form, losses, options.rounds, options.seed, options.a_second))
    return int(broken > 0)


async def run(form: str, losses: list[Loss], rounds: int, seed: int, a_second: float) -> int:
    """One form; how many promises were broken."""
    folder = Path(tempfile.mkdtemp(prefix=f"synergon-failover-{form}-"))
    server = ReplicatedServer()
    async with failover(server, folder, [form], PLACES) as pair:
        for number in range(PRODUCERS):
            pair.arena.start_producer(seed + number, a_second=a_second)
        for number in range(rounds):
            loss = losses[number % len(losses)]
            await pair.lose_primary(loss)
            seconds = pair.arena.outages[-1].seconds
            waits = ", ".join(f"{wait:.1f} s" for wait in pair.waits[-PRODUCERS:])
            print(f"the primary {loss}: another after {seconds:.1f} s; producers waited {waits}", flush=True)
            await pair.restore_standby()
        began = time.monotonic()
        await pair.arena.drained()
        print(f"drained after {time.monotonic() - began:.1f} s")
        findings = report(pair.arena)
        await pair.arena.check_that_all_end_in_order()
        await pair.arena.check_that_nothing_is_left()
    server.close()
    print(f"{form}, seed {seed}: {f'{len(findings)} promises broken' if findings else 'every promise was kept'}")
    print(f"logs: {folder}", flush=True)
    return len(findings)


def report(arena: Arena) -> list[str]:
    """Say what has become of the tasks, and what the auditor found."""
    evidence = arena.evidence()
    findings = audit(evidence) + [f"a node ended with code {code}" for code in arena.exits]
    findings += [f"a node said {words!r}" for words in arena.unexpected_words()]
    ends = Counter(f"{row.state}{f'({row.reason})' if row.reason else ''}" for row in evidence.rows)
    started = Counter(task_id for task_id, _ in {(line.task_id, line.claim_no) for line in evidence.lines})
    again = sum(started[row.id] > row.attempts for row in evidence.rows)
    print(f"{len(evidence.accepted)} tasks accepted, {len(evidence.rows)} in all, {dict(ends)}")
    print(f"{sum(started.values())} executions; {again} tasks were started again without an attempt being charged")
    for finding in findings:
        print(f"BROKEN: {finding}")
    return findings


if __name__ == "__main__":
    sys.exit(main())
