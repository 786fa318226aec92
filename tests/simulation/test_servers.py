"""Servers that are out of service get no tasks, are probed by one node at a time, and come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.served_world import ServedWorld
from tests.simulation.world import WatchedStore

from synergon.model.limits import ProbeResult, ServerChange, ServerProbe
from synergon.node.duties.server_probes import ServerProbes
from synergon.stores.rules import finish, server_health
from synergon.stores.rules.shared_capacity import ServerCapacity

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 8
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_servers_are_used_as_their_health_allows_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = ServedWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


def back_offs_ignored(patch: Patch) -> None:
    """A claim takes tasks for servers that are out of service."""

    def at_full_capacity(server: tuple[str, str], capacity: int | None, **_: Any) -> ServerCapacity:
        return ServerCapacity(*server, capacity)

    patch.setattr(server_health, "capacity_of", at_full_capacity)


def trials_without_a_bound(patch: Patch) -> None:
    """A server on trial gets as many tasks as it can take."""
    patch.setattr(ServerCapacity, "free", ServerCapacity.free_for_commands)


def outcomes_count_while_a_server_is_out(patch: Patch) -> None:
    """Attempts that began before the back-off lengthen or end it."""
    patch.setattr(server_health, "_is_closed", lambda condition, health: False)


def probes_for_everybody(patch: Patch) -> None:
    """A claimed probe may be claimed again at once."""
    patch.setattr(server_health, "PROBE_MARGIN", -1_000_000)


def make_probes_late(patch: Patch) -> None:
    """Some results of probes arrive after another node may have claimed the probe. That breaks nothing."""
    is_well = ServerProbes._is_well

    async def late(self: ServerProbes, name: str, probe: ServerProbe) -> bool:
        found = await is_well(self, name, probe)
        if self._clock.chance() < 0.3:
            await asyncio.sleep(7)
        return found

    patch.setattr(ServerProbes, "_is_well", late)


def test_results_of_probes_that_come_too_late_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make_probes_late(monkeypatch)
    for seed in range(3):
        report = ServedWorld(seed).run()
        assert report.broken is None, f"seed {seed}: {report.broken}"


def late_results_of_probes_count(patch: Patch) -> None:
    """The result of a probe that was claimed again meanwhile is applied."""
    make_probes_late(patch)
    finish_probes = WatchedStore.finish_probes

    async def anyhow(self: WatchedStore, results: Sequence[ProbeResult]) -> list[ServerChange | None]:
        assert self._tables is not None
        current = {
            (name, address): server.backs_off_until
            for name, provider in self._tables.providers.items()
            for address, server in provider.servers.items()
        }
        return await finish_probes(
            self, [replace(one, until=current.get((one.provider, one.address)) or one.until) for one in results]
        )

    patch.setattr(WatchedStore, "finish_probes", anyhow)


def no_node_probes(patch: Patch) -> None:
    """Servers with a probe never come back."""

    async def sleep(self: ServerProbes) -> None:
        await asyncio.sleep(3600)

    patch.setattr(ServerProbes, "step", sleep)


def blame_without_a_bound(patch: Patch) -> None:
    """A task may blame its servers for ever."""
    patch.setattr(finish, "may_blame_server", lambda server_failures, is_command: True)


def blame_is_charged(patch: Patch) -> None:
    """A task that blames its server loses an attempt."""
    patch.setattr(finish, "may_blame_server", lambda server_failures, is_command: False)


MUTANTS: Final[tuple[Mutant, ...]] = (
    back_offs_ignored,
    trials_without_a_bound,
    outcomes_count_while_a_server_is_out,
    probes_for_everybody,
    late_results_of_probes_count,
    no_node_probes,
    blame_without_a_bound,
    blame_is_charged,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_servers_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(ServedWorld, mutate, monkeypatch)
