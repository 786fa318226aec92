"""How much is measured: all of it, or enough for a first look."""

from __future__ import annotations

from typing import Final

import msgspec


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks each measure takes."""

    name: str
    repeats: int
    """Many short rounds rather than few long ones: the best of many is the least disturbed."""
    tasks: int
    thread_tasks: int
    process_tasks: int
    latency_samples: int
    scheduled_tasks: int
    batch_items: int
    huey_tasks: int
    huey_latency_samples: int
    raw_tasks: int
    raw_single_tasks: int
    postgres_tasks: int
    postgres_latency_samples: int
    backlog: int
    idle_seconds: float
    customers: int
    customer_tasks: int
    """In all; as many for each customer."""
    customer_nodes: int
    server_tasks: int
    tenant_tasks: int
    one_at_a_time: int
    raises: int
    flows: int
    history: int
    """How many tasks have ended when pages are timed."""
    waiting: int
    page_samples: int
    viewed_tasks: int
    """How many tasks a node drains beside viewers."""


FULL: Final = Sizes(
    name="full",
    repeats=5,
    tasks=50_000,
    thread_tasks=10_000,
    process_tasks=2_000,
    latency_samples=300,
    scheduled_tasks=200,
    batch_items=100_000,
    huey_tasks=3_000,
    huey_latency_samples=50,
    raw_tasks=50_000,
    raw_single_tasks=3_000,
    postgres_tasks=30_000,
    postgres_latency_samples=200,
    backlog=1_000_000,
    idle_seconds=45.0,
    customers=500,
    customer_tasks=20_000,
    customer_nodes=4,
    server_tasks=20_000,
    tenant_tasks=20_000,
    one_at_a_time=500,
    raises=50,
    flows=1_000,
    history=1_000_000,
    waiting=100_000,
    page_samples=40,
    viewed_tasks=50_000,
)

QUICK: Final = Sizes(
    name="quick",
    repeats=2,
    tasks=30_000,
    thread_tasks=5_000,
    process_tasks=1_000,
    latency_samples=200,
    scheduled_tasks=200,
    batch_items=20_000,
    huey_tasks=2_000,
    huey_latency_samples=30,
    raw_tasks=30_000,
    raw_single_tasks=2_000,
    postgres_tasks=20_000,
    postgres_latency_samples=100,
    backlog=100_000,
    idle_seconds=20.0,
    customers=500,
    customer_tasks=10_000,
    customer_nodes=4,
    server_tasks=10_000,
    tenant_tasks=10_000,
    one_at_a_time=100,
    raises=20,
    flows=100,
    history=100_000,
    waiting=10_000,
    page_samples=20,
    viewed_tasks=30_000,
)
