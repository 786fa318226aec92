"""Locks the limits and servers whose permits the tasks of a claim need, in the lock order.

Limits are locked before servers. A limit whose name is a prefix of a server's address covers that server, so a claim
must know which limits cover its servers before it locks the servers. It uses what the last claim found (`Covering`). If
that has changed, it raises `Contention`, and the store repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from synergon.model.claims import KindRequest
from synergon.model.limits import KEY_QUEUES
from synergon.options.addresses import covers
from synergon.stores.contention import Contention
from synergon.stores.postgres.lock_order import key_queue_limits
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import KeyQueueLimit, LockedLimitRow, SharedLimits
from synergon.stores.rules.server_health import capacity_of
from synergon.stores.rules.shared_capacity import ServerCapacity

Covering = dict[frozenset[str], frozenset[str]]
"""For each set of providers, the limits that cover their servers, as the last claim found them."""


class PoolRow(msgspec.Struct, frozen=True):
    """A server with the columns that decide about its health, and the names of all limits that may cover servers."""

    provider: str
    address: str
    capacity: int | None
    recent: int
    is_out: bool
    backs_off: bool
    is_probed: bool
    prefixes: list[str]

    @property
    def server(self) -> ServerCapacity:
        """The server with the capacity that its health allows."""
        return capacity_of(
            (self.provider, self.address),
            self.capacity,
            recent_failures=self.recent.bit_count(),
            is_out=self.is_out,
            backs_off=self.backs_off,
            is_probed=self.is_probed,
        )


async def lock_limits(
    transaction: Transaction, kinds: Collection[KindRequest], covering: Covering, keyed_kinds: Collection[str] = ()
) -> SharedLimits:
    """Lock and read the limits and servers whose permits tasks of these kinds need. Also locks the key queues of
    `keyed_kinds`. Raises `Contention` if the servers are covered by a limit that the last claim did not find."""
    providers = frozenset(kind.provider for kind in kinds if kind.provider is not None)
    names = {name for kind in kinds for name in kind.limits} | await _limits_above(transaction, providers, covering)
    rated = {kind.kind for kind in kinds if kind.is_rated or kind.batch_size}
    wanted = names | {KEY_QUEUES + kind for kind in (*rated, *keyed_kinds)}
    rows = await transaction.typed(LockedLimitRow, "lock_limits", sorted(wanted)) if wanted else []
    transaction.key_queue_limits.update(dict.fromkeys(rated, KeyQueueLimit()) | key_queue_limits(rows))
    pool = await transaction.typed(PoolRow, "lock_pools", sorted(providers)) if providers else []
    covering[providers] = _above(pool[0].prefixes if pool else [], [row.address for row in pool])
    if not covering[providers] <= names:
        raise Contention("the servers or their limits have changed since the last claim")
    now = rows[0].now if rows else 0
    return SharedLimits.of((row for row in rows if row.name in names), [row.server for row in pool], now)


async def _limits_above(transaction: Transaction, providers: frozenset[str], covering: Covering) -> frozenset[str]:
    if providers and providers not in covering:
        prefixes = [row["name"] for row in await transaction.rows("prefixes")]
        addresses = [row["address"] for row in await transaction.rows("addresses", sorted(providers))]
        covering[providers] = _above(prefixes, addresses)
    return covering.get(providers, frozenset())


def _above(prefixes: Iterable[str], addresses: Sequence[str]) -> frozenset[str]:
    return frozenset(prefix for prefix in prefixes if any(covers(prefix, address) for address in addresses))
