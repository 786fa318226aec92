"""Capacity features that a plain task never meets: reservation, preemption, acceptance."""
