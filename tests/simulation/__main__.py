"""`python -m tests.simulation --seeds N [--first K]`, or `--seed K` for one of them with everything that happened."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.world import World


def main() -> int:
    """Run worlds; 1 if one of them broke a promise."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this one, and print what happened")
    options = parser.parse_args()
    return replay(options.seed) if options.seed is not None else run_many(options.first, options.seeds)


def replay(seed: int) -> int:
    """One world, event by event."""
    report = World(seed).run()
    print("\n".join(report.events))
    print(f"seed {seed}: {report.broken or 'every promise was kept'}")
    return int(report.broken is not None)


def run_many(first: int, number: int) -> int:
    """Many worlds; those that broke a promise are named."""
    began = time.monotonic()
    broken = tasks = statements = 0
    for seed in range(first, first + number):
        report = World(seed).run()
        tasks += report.tasks
        statements += report.statements
        if report.broken is not None:
            broken += 1
            print(f"seed {seed}: {report.broken}", flush=True)
    seconds = time.monotonic() - began
    print(f"{number} worlds, {tasks} tasks, {statements} statements, {number / seconds:.1f} worlds/s: {broken} broken")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
