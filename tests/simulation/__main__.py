"""`python -m tests.simulation --seeds N [--first K]`, or `--seed K` for one of them with everything that happened.

Each seed makes several worlds: one whose processes know each other by the store alone, one in which they also talk over
a network, one with limits and key queues, one in the middle of a deploy, one with schedules, one with bounds on queues
and providers, and one with a rate. `--mutants` breaks the code of the peers on purpose instead, and looks for the first
seed that shows it.
"""

from __future__ import annotations

import argparse
import sys
import time

import pytest
from tests.simulation.bounded_world import BoundedWorld
from tests.simulation.dependent_world import DependentWorld
from tests.simulation.deploy_world import DeployWorld
from tests.simulation.fair_world import FairWorld
from tests.simulation.limited_world import LimitedWorld
from tests.simulation.network_mutants import NETWORK_MUTANTS
from tests.simulation.network_world import NetworkWorld
from tests.simulation.rated_world import RatedWorld
from tests.simulation.scheduled_world import ScheduledWorld
from tests.simulation.served_world import ServedWorld
from tests.simulation.world import World

WORLDS: tuple[type[World], ...] = (
    World,
    DependentWorld,
    NetworkWorld,
    LimitedWorld,
    DeployWorld,
    ScheduledWorld,
    BoundedWorld,
    RatedWorld,
    FairWorld,
    ServedWorld,
)


def main() -> int:
    """Run worlds; 1 if one of them broke a promise."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this one, and print what happened")
    parser.add_argument("--mutants", action="store_true", help="see which of the first seeds catch each mutant")
    options = parser.parse_args()
    if options.mutants:
        return hunt(options.first, options.seeds)
    return replay(options.seed) if options.seed is not None else run_many(options.first, options.seeds)


def replay(seed: int) -> int:
    """The worlds of one seed, event by event."""
    is_broken = False
    for kind in WORLDS:
        report = kind(seed).run()
        print("\n".join(report.events))
        print(f"seed {seed}, {kind.__name__}: {report.broken or 'every promise was kept'}\n")
        is_broken |= report.broken is not None
    return int(is_broken)


def run_many(first: int, number: int) -> int:
    """Many worlds; those that broke a promise are named."""
    began = time.monotonic()
    broken = tasks = statements = 0
    for seed in range(first, first + number):
        for kind in WORLDS:
            report = kind(seed).run()
            tasks += report.tasks
            statements += report.statements
            if report.broken is not None:
                broken += 1
                print(f"seed {seed}, {kind.__name__}: {report.broken}", flush=True)
    worlds, seconds = number * len(WORLDS), time.monotonic() - began
    print(f"{worlds} worlds, {tasks} tasks, {statements} statements, {worlds / seconds:.1f} worlds/s: {broken} broken")
    return int(broken > 0)


def hunt(first: int, number: int) -> int:
    """Each mutant of the network, and the first seed that catches it; 1 if one of them escapes."""
    has_escaped = False
    for mutate in NETWORK_MUTANTS:
        with pytest.MonkeyPatch.context() as patch:
            mutate(patch)
            seeds = (seed for seed in range(first, first + number) if NetworkWorld(seed).run().broken)
            caught_at = next(seeds, None)
        print(f"{mutate.__name__}: {'not caught' if caught_at is None else f'seed {caught_at}'}", flush=True)
        has_escaped |= caught_at is None
    return int(has_escaped)


if __name__ == "__main__":
    sys.exit(main())
