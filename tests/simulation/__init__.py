"""The node's own code on virtual time, with faults by a seed, and an auditor that holds it to its promises.

`python -m tests.simulation --seeds 1000` runs many worlds; `--seed 7` runs one and prints everything that happened.
"""
