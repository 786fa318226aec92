"""The registry of the limits and providers that an engine's code declares. The engine stores them when it connects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from synergon.errors import OptionError
from synergon.model.limits import NewBatch, NewLimit, NewProvider
from synergon.options.addresses import covers
from synergon.options.durations import microseconds
from synergon.policies import Rate, limit_text
from synergon.stores.rules.shared_servers import NamedServer, counted_twice
from synergon.task import AnyTask

if TYPE_CHECKING:
    from synergon.providers.provider import Provider


class Registry:
    """Limits and providers by name. Each can be declared once."""

    def __init__(self) -> None:
        self._limits: dict[str, NewLimit] = {}
        self.providers: dict[str, Provider] = {}
        self.is_declared: bool = True
        """Whether everything that is registered is in the store."""

    def add_limit(self, name: str, value: int | None, rate: Rate | None = None) -> None:
        """Declare a limit, which kinds may name, or which covers servers by prefix. Raises OptionError if it was
        declared before with another value or rate."""
        limit = NewLimit(name=name, value=value, rate=None if rate is None else rate.record)
        known = self._limits.get(name, limit)
        if known != limit:
            raise OptionError(
                f"the limit {name!r} is declared as {limit_text(known)} and as {limit_text(limit)}; declare it once, "
                "and change it while it is in force with engine.set_limit"
            )
        self._add(limit)

    def add_provider(self, provider: Provider) -> None:
        """Declare a provider. Raises OptionError if its name is taken, or if it names a server of another provider and
        no limit covers that server."""
        if provider.name in self.providers:
            raise OptionError(f"two providers are named {provider.name!r}; give one of them another name")
        providers = {**self.providers, provider.name: provider}
        named = (
            NamedServer(name, server.address, server.capacity)
            for name, each in providers.items()
            for server in each.declaration().servers
        )
        for twice in counted_twice(named, self._limits):
            raise OptionError(f"{twice.problem}; {twice.advice}")
        self.providers = providers
        self.is_declared = False

    def add_kind(self, task_type: AnyTask) -> None:
        """Declare the limits that belong to a kind. Raises OptionError if the kind names a limit that was not
        declared."""
        policy = task_type.policy
        for name in policy.limits:
            if name not in self._limits:
                raise OptionError(
                    f"task {task_type.kind!r} names the limit {name!r}, which is not declared; "
                    f"write engine.limit({name!r}, ...) above it"
                )
        if policy.max_running_global is not msgspec.UNSET:
            self._add(NewLimit(name=f"kind:{task_type.kind}", value=policy.max_running_global))
        if policy.has_key_queues:
            rate = None if policy.rate is None else policy.rate.record
            batch = None
            if policy.batch is not None:
                batch = NewBatch(size=policy.batch.size, wait=microseconds(policy.batch.wait_seconds))
            self._add(NewLimit(name=f"key:{task_type.kind}", value=policy.limit, rate=rate, batch=batch))

    def _add(self, limit: NewLimit) -> None:
        self._limits[limit.name] = limit
        self.is_declared = False

    def declarations(self) -> tuple[list[NewLimit], list[NewProvider]]:
        """All limits and providers, as records for the store."""
        providers = [provider.declaration() for provider in self.providers.values()]
        return list(self._limits.values()), providers

    def covering(self, address: str) -> Iterator[str]:
        """The names of the declared limits that cover a server."""
        return (name for name in self._limits if covers(name, address))
