"""Ways to break batches on purpose: what the auditor of worlds with batches must notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace
from tests.simulation.mutants import Mutant, Patch

from synergon.model.claims import Claim
from synergon.stores.memory.key_queue_rows import KeyQueueRows
from synergon.stores.memory.ready_rows import ReadyRows
from synergon.stores.rows import KeyQueueName, LiveTask, NextBatch
from synergon.stores.rules import batches
from synergon.stores.session import Session


def alarm_not_stored(patch: Patch) -> None:
    """Nobody knows when an incomplete batch is due."""

    async def forget(self: KeyQueueRows, moments: Mapping[KeyQueueName, int | None]) -> None:
        return None

    patch.setattr(KeyQueueRows, "set_alarms", forget)


def one_member_too_many(patch: Patch) -> None:
    """A claim takes more tasks than the batch has places."""
    take = ReadyRows.take_members

    async def greedy(self: ReadyRows, node_id: str, leader: Claim, count: int) -> list[Claim]:
        return await take(self, node_id, leader, count + 1)

    patch.setattr(ReadyRows, "take_members", greedy)


def leader_forgotten(patch: Patch) -> None:
    """A ready leader is not counted, so that another one is promoted beside it."""
    read = KeyQueueRows.next_batches

    async def blind(self: KeyQueueRows, names: Sequence[KeyQueueName], size: int) -> list[NextBatch]:
        return [replace(found, ready=0) for found in await read(self, names, size)]

    patch.setattr(KeyQueueRows, "next_batches", blind)


def suspects_stay_together(patch: Patch) -> None:
    """The tasks of a dead node go back into the key queue of their batches."""

    def never(task: LiveTask) -> bool:
        return False

    patch.setattr(batches, "must_run_alone", never)


def key_queue_not_balanced_after_a_claim(patch: Patch) -> None:
    """What a claim leaves of a key queue gets no leader and no alarm."""
    take = batches.take_members

    async def untouched(
        session: Session, node_id: str, sizes: Mapping[str, int], leaders: Sequence[Claim]
    ) -> dict[int, list[Claim]]:
        taken = await take(session, node_id, sizes, leaders)
        session.touched.key_queues.clear()
        return taken

    patch.setattr(batches, "take_members", untouched)


BATCH_MUTANTS: Final[tuple[Mutant, ...]] = (
    alarm_not_stored,
    one_member_too_many,
    leader_forgotten,
    suspects_stay_together,
    key_queue_not_balanced_after_a_claim,
)
