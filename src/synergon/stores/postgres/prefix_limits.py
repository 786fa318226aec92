"""Which limits cover the servers of which providers: they are locked before the servers are, and so known before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synergon.model.claims import KindRequest
from synergon.options.addresses import covers
from synergon.stores.postgres.session import Session

Covering = dict[frozenset[str], frozenset[str]]
"""The limits that cover the servers of some providers, as it was seen last. Whoever has locked the servers sees it
again, and does it over should one be missing among those that it has locked."""


def providers_of(kind_requests: Iterable[KindRequest]) -> frozenset[str]:
    """Those on whose servers tasks of these kinds run."""
    return frozenset(kind_request.provider for kind_request in kind_requests if kind_request.provider is not None)


async def limits_above(session: Session, providers: frozenset[str], covering: Covering) -> frozenset[str]:
    """Those of these providers, as far as it is known; if nothing is, it is looked."""
    if providers and providers not in covering:
        prefixes = [row["name"] for row in await session.rows("prefixes")]
        addresses = [row["address"] for row in await session.rows("addresses", sorted(providers))]
        covering[providers] = above(prefixes, addresses)
    return covering.get(providers, frozenset())


def above(prefixes: Iterable[str], addresses: Sequence[str]) -> frozenset[str]:
    """Those of the limits that cover one of the addresses."""
    return frozenset(prefix for prefix in prefixes if any(covers(prefix, address) for address in addresses))
