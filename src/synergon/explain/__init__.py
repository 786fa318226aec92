"""Why a task waits: one sentence for people, and a structure for programs.

The answer comes from the code that decides what runs where (`stores.rules.claim_plan`,
`stores.rules.shared_capacity`), from the rows of the store and the status that each node publishes.
"""
