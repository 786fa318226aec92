"""Peers: nodes and producers that tell each other about work, so that nobody has to poll for it."""
