"""Seeds whose worlds show mutants, so that the search for a world that shows one is short.

The search goes on through the other seeds where a known seed shows its mutant no longer: a change of the engine changes
what happens in a world.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import pytest
from tests.simulation.mutants import Mutant
from tests.simulation.world import World

KNOWN_SEEDS: Final = {
    "cancel_believed": 10,
    "cancel_forgotten_at_retry": 31,
    "cancel_not_told": 11,
    "claim_from_paused_queues": 1,
    "closed_after_joining_again": 4,
    "dead_nodes_waited_for": 5,
    "deferred_kinds_left_to_the_sweep": 1,
    "deleted_tasks_awaited": 10,
    "done_never_sent": 8,
    "exchange_without_lease": 4,
    "exchange_without_limits": 8,
    "exchanged_outcomes_dropped_in_outages": 27,
    "failing_peer_dropped_for_ever": 8,
    "finish_without_fence": 8,
    "fired_again_after_a_change": 4,
    "first_end_counts_for_ever": 1,
    "foreign_kinds_not_told": 24,
    "full_peer_is_enough": 98,
    "hinted_work_is_taken": 1,
    "key_queue_not_balanced_after_an_end": 1,
    "last_statistics_forgotten": 3,
    "leader_forgotten": 1,
    "lease_renewed_too_late": 110,
    "leftovers_forgotten": 1,
    "limit_of_a_key_queue_ignored": 1,
    "max_running_ignored": 1,
    "new_hints_not_heard": 8,
    "no_last_look": 18,
    "no_node_probes": 1,
    "node_never_fenced": 21,
    "outcomes_count_while_a_server_is_out": 1,
    "outcomes_dropped_in_outages": 10,
    "outgoing_lost_on_failure": 8,
    "pause_ignored": 6,
    "pending_forgotten_by_a_change": 4,
    "producers_tell_nobody": 12,
    "reap_by_a_fast_clock": 8,
    "resumed_not_told": 8,
    "retried_task_does_not_wait": 6,
    "retry_of_one_generation_only": 1,
    "retry_remembers_refusals": 17,
    "retry_without_reopening": 1,
    "scheduled_not_told": 27,
    "schedules_looked_at_by_sweeps_only": 2,
    "settlement_applied_twice": 29,
    "shared_limit_ignored": 6,
    "statistics_of_minutes_added_twice": 1,
    "success_forgotten_at_retry": 12,
    "suspects_before_others": 1,
    "suspects_stay_together": 5,
    "table_read_once": 8,
    "threads_forgotten": 12,
    "threads_not_counted_by_claims": 1,
    "unknown_claims_kept": 34,
    "unsettled_for_ever": 1,
    "waiters_told_once": 3,
    "youngest_first": 1,
}
"""The seed of a world that shows a mutant, where it is not 0."""


def check_caught(world: type[World], mutate: Mutant, patch: pytest.MonkeyPatch, number: int = 100) -> None:
    """One of this number of worlds shows the mutant."""
    known = KNOWN_SEEDS.get(mutate.__name__, 0)
    mutate(patch)
    seeds = chain([known], (seed for seed in range(number) if seed != known))
    assert any(world(seed).run().broken for seed in seeds), f"{number} worlds have not shown it"
