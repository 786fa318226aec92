"""Why a task waits: one sentence for people, and a structure for programs.

The answer is worked out by the code that decides what runs where (`stores.weighing`, `stores.allotting`,
`node_state`), from what the store has and from what each node says of itself.
"""
