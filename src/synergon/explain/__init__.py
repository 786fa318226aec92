"""Explains why a task waits: one sentence for people, and a structure for programs.

The explanation comes from the code that decides which node runs a task (`stores.rules.claim_plan`,
`stores.rules.shared_capacity`), from the rows of the store, and from the status that each node publishes.
"""
