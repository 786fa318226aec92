"""The liveness of a node: lease, membership, watchdog, reaper, published status."""
