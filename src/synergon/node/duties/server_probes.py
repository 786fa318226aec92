"""Server health as a node sees it: logs and publishes that servers are taken out of service or are back, and probes
those that are out.

A probe is a user's coroutine function. The store gives each probe to one node at a time, by a guarded row; no node
leads. A probe that raises, returns False or does not end within its timeout has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from synergon.errors import StoreError
from synergon.model.clock import Clock
from synergon.model.limits import ProbeResult, ServerChange, ServerProbe
from synergon.node.callbacks.callbacks import Callbacks, awaited
from synergon.node.callbacks.event_feed import EventFeed
from synergon.node.duties.next_moment import NextMoment
from synergon.node.signals import Signals
from synergon.providers.server import Server
from synergon.stores.base import Store
from synergon.task import AnyTask

Probe = Callable[[Server], Awaitable[Any]]


def probes_of(kinds: Iterable[AnyTask]) -> dict[str, Probe]:
    """The probes of the providers of these kinds, by provider."""
    providers = {kind.provider.name: kind.provider for kind in kinds if kind.provider is not None}
    return {name: provider.probe for name, provider in providers.items() if provider.probe is not None}


class ServerProbes:
    """Reports changes of servers' health, and probes servers of providers that have a probe."""

    def __init__(
        self,
        store: Store,
        probes: Mapping[str, Probe],
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        callbacks: Callbacks,
        feed: EventFeed,
        signals: Signals,
    ) -> None:
        self._store = store
        self.probes: Final = probes
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self._feed = feed
        self._signals = signals
        self._moment = NextMoment(clock)
        self._running: set[tuple[str, str]] = set()
        """The servers whose probe runs here."""

    def check_now(self) -> None:
        """Check for due probes now."""
        self._moment.check_now()

    def report(self, changes: Iterable[ServerChange], node_id: str) -> None:
        """Log and publish changes that the store has, and note when the next probe is due."""
        for change in changes:
            extra = {"provider": change.provider, "server": change.address}
            if change.is_out:
                then = "it is probed" if change.provider in self.probes else "it is tried with one task"
                self._logger.warning(
                    "server %s of provider %s is out of service: %s; %s after a back-off",
                    change.address,
                    change.provider,
                    change.reason,
                    then,
                    extra=extra,
                )
            else:
                self._logger.info(
                    "server %s of provider %s is back in service: %s",
                    change.address,
                    change.provider,
                    change.reason,
                    extra=extra,
                )
            self._feed.server_changed(change, node_id)
        self._moment.check_now()

    async def step(self) -> None:
        """Start the probes that are due, then sleep until the next one is."""
        self._moment.begin()
        claimed = await self._store.claim_probes(sorted(self.probes))
        if claimed.next_in is not None:
            self._moment.due_in(claimed.next_in / 1_000_000)
        for probe in claimed.probes:
            name = f"the probe of server {probe.address}"
            self._callbacks.start(name, self._run(name, probe))
        await self._moment.wait()

    async def _run(self, name: str, probe: ServerProbe) -> None:
        server = (probe.provider, probe.address)
        if server in self._running:  # it ignores its timeout
            return
        self._running.add(server)
        try:
            is_well = await self._is_well(name, probe)
        finally:
            self._running.discard(server)
        result = ProbeResult(provider=probe.provider, address=probe.address, until=probe.until, is_well=is_well)
        try:
            changes = await self._store.finish_probes([result])
        except StoreError as error:  # the next probe follows when the time of this one is over
            self._logger.debug("the result of %s could not be stored: %s", name, error)
            return
        self._signals.servers_changed([change for change in changes if change is not None])
        self._moment.check_now()

    async def _is_well(self, name: str, probe: ServerProbe) -> bool:
        server = Server(probe.address, probe.provider)
        try:
            with self._callbacks.limited(name, probe.timeout / 1_000_000):
                return await awaited(self.probes[probe.provider](server)) is not False
        except Exception as error:  # noqa: BLE001  whatever the probe raised: the server is not well
            self._logger.debug("%s failed: %s: %s", name, type(error).__name__, error)
            return False
