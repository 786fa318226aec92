"""Peering: nodes and producers send each other hints about work and results, so that they need not poll."""
