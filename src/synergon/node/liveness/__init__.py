"""Staying a member: lease, membership, watchdog, reaper, published status."""
