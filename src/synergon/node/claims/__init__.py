"""Deciding what to claim: the scheduler, the claim request and the capacity ledger."""
