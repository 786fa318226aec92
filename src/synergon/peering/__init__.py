"""Peering: nodes and producers send each other hints about tasks and results, so that they need not poll the store."""
