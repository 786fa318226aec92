"""Decides what a node claims: scheduler, claim request, and the ledger of used capacity."""
