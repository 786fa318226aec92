"""The program of `peers_worker`, with a later version of the peers' protocol."""

from __future__ import annotations

from tests.cluster.apps.peers_worker import main

from synergon.peering import wire

if __name__ == "__main__":
    wire.PROTOCOL += 1  # type: ignore[misc]  # a constant of each release
    main()
