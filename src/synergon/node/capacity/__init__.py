"""Capacity features that plain tasks do not use: reservation, preemption, acceptance (`can_accept`)."""
