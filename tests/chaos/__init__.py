"""Chaos with real processes: nodes are killed and frozen, databases restarted, peers silenced; an auditor looks after.

The simulator (`tests.simulation`) does the same in virtual time, with every statement in view. Here nothing is
virtual, so the auditor sees less: the database as it is in the end, and what bodies and producers wrote down.
"""
