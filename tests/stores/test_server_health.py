"""The health of servers: the rate of failures, probes, tasks that blame their server, and commands that repair it."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from tests.stores.actions import (
    ERROR,
    HOUR,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    pass_time,
    pool,
    read,
    settlement_of,
)

from synergon.model.attempts import AttemptOutcome
from synergon.model.claims import Claim, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewProvider, ProbeResult, ServerChange, ServerRecord
from synergon.model.outcomes import Failed, Outcome, Retrying, ServerFault, Succeeded, Verdict
from synergon.model.record import from_datetime
from synergon.model.tasks import Rescheduling
from synergon.policies import SERVER_FAILURE_LIMIT
from synergon.stores.base import Store
from synergon.stores.rules.server_health import PROBE_MARGIN

ROOM: Final = KindRequest(kind="work", count=1000, provider="gpu")
COMMANDS: Final = KindRequest(kind="repair", count=10, provider="gpu", is_command=True)
FAILED: Final = Failed(reason=Reason.ERROR, error=ERROR)
RETRYING: Final = Retrying(delay=HOUR, error=ERROR)
REST: Final = 10 * MILLISECOND
TIMEOUT: Final = 20 * MILLISECOND


def blame(claim: Claim, otherwise: Failed | Retrying) -> ServerFault:
    """The outcome of a task that blames its server."""
    return ServerFault(error=ERROR, otherwise=otherwise, server=("gpu", claim.server or ""))


async def declare(store: Store, capacity: int = 4, probe_timeout: int | None = None, **more: int | None) -> None:
    """A provider with the servers `a` and `b`. The fourth of the last six failures is too much for a server."""
    provider = NewProvider(
        name="gpu",
        servers=pool(a=capacity, b=capacity),
        **{"backoff_after": 100, "backoff_first": REST, "backoff_cap": HOUR, **more},  # type: ignore[arg-type]
        failure_most=4,
        failure_window=6,
        probe_timeout=probe_timeout,
    )
    await store.declare([], [provider])


async def end(store: Store, claim: Claim, outcome: Outcome) -> Verdict:
    """End an attempt, and count it for its server."""
    assert claim.server is not None
    well = isinstance(outcome, Succeeded)
    (verdict,) = await store.finish(
        [settlement_of(claim, outcome, server=("gpu", claim.server), is_server_well=well, slot=claim.slot)]
    )
    return verdict


async def run(store: Store, worker: Worker, word: str, target: str = "a") -> list[tuple[ServerChange, ...]]:
    """Run a task on the server for each letter: `x` fails, `.` succeeds. What each of them changed."""
    changes = []
    for letter in word:
        await add(store, target=target)
        (claim,) = await worker.claim_kinds(ROOM)
        changes.append((await end(store, claim, Succeeded() if letter == "." else FAILED)).servers)
    return changes


async def server(store: Store, address: str = "a") -> ServerRecord:
    (found,) = [one for one in await store.servers() if one.address == address]
    return found


# ---------------------------------------------------------------- the rate of failures


async def test_a_server_is_taken_out_when_too_many_of_its_last_tasks_have_failed(store: Store, worker: Worker) -> None:
    await declare(store)
    *before, (change,) = await run(store, worker, "x.x.x...x.x.xx")
    assert before == [()] * 13
    assert (change.provider, change.address, change.is_out) == ("gpu", "a", True)
    assert change.reason == "4 of its last 6 tasks failed"
    found = await server(store)
    assert (found.failures, found.recent_failures, found.is_out, found.backs_off_until) == (2, 4, True, change.until)


async def test_failures_in_a_row_are_the_reason_when_there_are_no_others(store: Store, worker: Worker) -> None:
    await declare(store, backoff_after=3)
    *_, (change,) = await run(store, worker, "..xxx")
    assert change.reason == "3 failures in a row"


async def test_failures_that_are_further_back_are_forgotten(store: Store, worker: Worker) -> None:
    await declare(store)
    await run(store, worker, "xxx......")
    assert (await server(store)).recent_failures == 0
    assert await run(store, worker, "xxx") == [()] * 3


async def test_a_server_with_recent_failures_does_not_attract_tasks_by_being_idle(store: Store, worker: Worker) -> None:
    await declare(store)
    await run(store, worker, "xxx")
    await add_many(store, 8)
    claims = await worker.claim_kinds(ROOM, limit=3)
    assert [claim.server for claim in claims] == ["b", "b", "b"]
    assert len(await worker.claim_kinds(ROOM)) == 5, "it is in service, and takes what the other one cannot"


async def test_a_server_on_trial_is_tried_although_others_have_free_permits(store: Store, worker: Worker) -> None:
    await declare(store)
    await run(store, worker, "xxxx")
    await pass_time(store, REST)
    await add_many(store, 2)
    claims = await worker.claim_kinds(ROOM)
    assert sorted(claim.server or "" for claim in claims) == ["a", "b"]


async def test_a_server_that_is_back_and_fails_again_stays_out_for_longer(store: Store, worker: Worker) -> None:
    await declare(store)
    await run(store, worker, "xxxx")
    for doubled in (2, 4):
        await pass_time(store, REST * doubled)
        ((back,),) = await run(store, worker, ".")
        assert (back.is_out, back.reason, back.until) == (False, "a task succeeded", None)
        before = await store.now()
        *_, (out,) = await run(store, worker, "xx")
        assert out.until is not None
        assert from_datetime(out.until) - before >= doubled * REST
    await pass_time(store, 4 * REST)
    await run(store, worker, ".......")
    await run(store, worker, "xxxx")
    until = (await server(store)).backs_off_until
    assert until is not None
    assert from_datetime(until) - await store.now() <= REST, "its window was clean, so it begins anew"


async def test_a_trial_that_fails_is_no_new_outage(store: Store, worker: Worker) -> None:
    await declare(store)
    await run(store, worker, "xxxx")
    await pass_time(store, REST)
    assert await run(store, worker, "x") == [()]
    assert (await server(store)).is_out


async def test_outcomes_of_one_call_count_in_their_order(store: Store, worker: Worker) -> None:
    await declare(store, capacity=8)
    await add_many(store, 8, target="a")
    claims = await worker.claim_kinds(ROOM)
    assert len(claims) == 8
    words: list[Outcome] = [Succeeded(), FAILED, FAILED, FAILED, Succeeded(), FAILED, FAILED, Succeeded()]
    outcomes = [
        settlement_of(claim, outcome, server=("gpu", "a"), is_server_well=isinstance(outcome, Succeeded))
        for claim, outcome in zip(claims, words, strict=True)
    ]
    verdicts = await store.finish(outcomes)
    assert [change.is_out for verdict in verdicts for change in verdict.servers] == [True]
    assert verdicts[-1].servers, "the last verdict names them"
    assert (await server(store)).recent_failures == 4, "the rest came while it was out, and counts for nothing"


# ---------------------------------------------------------------- probes


async def take_out(store: Store, worker: Worker) -> None:
    """A provider with a probe, and one server that is out of service."""
    await declare(store, probe_timeout=TIMEOUT)
    *_, (change,) = await run(store, worker, "xxxx")
    assert change.is_out


async def test_a_server_with_a_probe_gets_no_task_until_the_probe_succeeds(store: Store, worker: Worker) -> None:
    await take_out(store, worker)
    await pass_time(store, REST)
    await add(store, target="a")
    assert await worker.claim_kinds(ROOM) == []
    (probe,) = (await store.claim_probes(["gpu"])).probes
    assert (probe.provider, probe.address, probe.timeout) == ("gpu", "a", TIMEOUT)
    assert await worker.claim_kinds(ROOM) == []
    result = ProbeResult(provider="gpu", address="a", until=probe.until, is_well=True)
    (change,) = await store.finish_probes([result])
    assert change == ServerChange(provider="gpu", address="a", is_out=False, reason="its probe succeeded")
    assert len(await worker.claim_kinds(ROOM)) == 1
    assert await store.finish_probes([result]) == [None], "a repeated result changes nothing"


async def test_a_server_is_not_probed_before_its_rest_is_over(store: Store, worker: Worker) -> None:
    await declare(store, probe_timeout=TIMEOUT, backoff_first=HOUR)
    await run(store, worker, "xxxx")
    claimed = await store.claim_probes(["gpu"])
    assert claimed.probes == ()
    assert claimed.next_in is not None
    assert 0 < claimed.next_in <= HOUR


async def test_one_node_probes_a_server_at_a_time(store: Store, worker: Worker) -> None:
    await take_out(store, worker)
    await pass_time(store, REST)
    claimed = await asyncio.gather(*(store.claim_probes(["gpu"]) for _ in range(5)))
    assert sum(len(claims.probes) for claims in claimed) == 1
    for claims in claimed:
        assert claims.next_in is not None
        assert claims.next_in <= TIMEOUT + PROBE_MARGIN
    assert (await store.claim_probes(["other"])).next_in is None


async def test_a_probe_that_fails_doubles_the_rest(store: Store, worker: Worker) -> None:
    await take_out(store, worker)
    await pass_time(store, REST)
    (probe,) = (await store.claim_probes(["gpu"])).probes
    before = await store.now()
    assert await store.finish_probes([ProbeResult(provider="gpu", address="a", until=probe.until, is_well=False)]) == [
        None
    ]
    until = (await server(store)).backs_off_until
    assert until is not None
    assert 2 * REST <= from_datetime(until) - before <= await store.now() - before + 2 * REST


async def test_the_result_of_a_probe_that_is_not_the_current_one_counts_for_nothing(
    store: Store, worker: Worker
) -> None:
    await take_out(store, worker)
    await pass_time(store, REST)
    (probe,) = (await store.claim_probes(["gpu"])).probes
    stale = ProbeResult(provider="gpu", address="a", until=probe.until - 1, is_well=True)
    gone = ProbeResult(provider="gpu", address="gone", until=probe.until, is_well=True)
    assert await store.finish_probes([stale, gone]) == [None, None]
    assert (await server(store)).is_out


async def test_tasks_that_end_while_a_server_waits_for_its_probe_count_for_nothing(
    store: Store, worker: Worker
) -> None:
    await declare(store, capacity=6, probe_timeout=TIMEOUT)
    await add_many(store, 6, target="a")
    claims = await worker.claim_kinds(ROOM)
    for claim in claims[:4]:
        await end(store, claim, FAILED)
    await pass_time(store, REST)
    before = await server(store)
    assert (await end(store, claims[4], Succeeded())).servers == ()
    assert (await end(store, claims[5], FAILED)).servers == ()
    after = await server(store)
    assert (after.backs_off_until, after.recent_failures) == (before.backs_off_until, before.recent_failures)


async def test_a_provider_that_has_no_probe_any_more_tries_its_servers_with_tasks(store: Store, worker: Worker) -> None:
    await take_out(store, worker)
    await declare(store)
    await pass_time(store, REST)
    assert (await store.claim_probes(["gpu"])).probes == ()
    await add_many(store, 2, target="a")
    assert len(await worker.claim_kinds(ROOM)) == 1


# ---------------------------------------------------------------- tasks that blame their server


async def test_a_task_that_blames_its_server_is_not_charged_and_runs_elsewhere(store: Store, worker: Worker) -> None:
    await declare(store)
    task_id = await add(store)
    (first,) = await worker.claim_kinds(ROOM)
    verdict = await end(store, first, blame(first, FAILED))
    assert (verdict.state, verdict.backs_off) == (State.READY, False)
    record = await read(store, task_id)
    assert (record.attempts, record.server_failures, len(record.errors)) == (0, 1, 1)
    assert [attempt.outcome for attempt in record.ended_attempts] == [AttemptOutcome.SERVER_FAILED]
    assert (await server(store, first.server or "")).failures == 1
    (second,) = await worker.claim_kinds(ROOM)
    assert (second.attempts, second.server) == (1, "b" if first.server == "a" else "a")


async def test_a_task_that_blames_its_server_waits_for_one_that_is_busy(store: Store, worker: Worker) -> None:
    await declare(store, capacity=1, backoff_after=None)
    blaming = await add(store)
    (first,) = await worker.claim_kinds(ROOM)
    blamed, other = (first.server, "b") if first.server == "a" else (first.server, "a")
    busy = await add(store)
    (long,) = await worker.claim_kinds(ROOM)
    assert (long.id, long.server) == (busy, other)
    await end(store, first, blame(first, FAILED))
    assert await worker.claim_kinds(ROOM) == []
    later = await add(store)  # another task may run on the blamed server
    (innocent,) = await worker.claim_kinds(ROOM)
    assert (innocent.id, innocent.server) == (later, blamed)
    await end(store, innocent, Succeeded())
    assert await worker.claim_kinds(ROOM) == []
    await end(store, long, Succeeded())
    (second,) = await worker.claim_kinds(ROOM)
    assert (second.id, second.server) == (blaming, other)


@pytest.mark.parametrize(("otherwise", "state"), [(FAILED, State.FAILED), (RETRYING, State.SCHEDULED)])
async def test_a_task_that_every_server_fails_is_charged_in_the_end(
    store: Store, worker: Worker, otherwise: Failed | Retrying, state: State
) -> None:
    await declare(store, backoff_after=None)
    task_id = await add(store)
    for number in range(SERVER_FAILURE_LIMIT + 1):
        (claim,) = await worker.claim_kinds(ROOM)
        verdict = await end(store, claim, blame(claim, otherwise))
        is_charged = number == SERVER_FAILURE_LIMIT
        assert verdict.state is (state if is_charged else State.SCHEDULED if number else State.READY)
        assert verdict.backs_off == (not is_charged and number > 0)
        if verdict.backs_off:
            await store.reschedule([Rescheduling(id=task_id, delay=0)])
    record = await read(store, task_id)
    assert (record.attempts, record.server_failures) == (1, SERVER_FAILURE_LIMIT)
    if state is State.FAILED:
        await store.retry([task_id])
        assert (await read(store, task_id)).server_failures == 0


async def test_a_task_that_has_tried_every_server_in_service_waits_longer_each_time(
    store: Store, worker: Worker
) -> None:
    await declare(store, backoff_after=None)
    await store.set_servers("gpu", pool(a=4, b=0, c=4))
    task_id = await add(store)
    delays: list[float] = []
    for _ in range(SERVER_FAILURE_LIMIT):
        (claim,) = await worker.claim_kinds(ROOM)
        await end(store, claim, blame(claim, FAILED))
        record = await read(store, task_id)
        ended_at = record.ended_attempts[-1].ended_at
        assert ended_at is not None
        delays.append(max(round((record.run_at - ended_at).total_seconds(), 1), 0.0))
        await store.reschedule([Rescheduling(id=task_id, delay=0)])
    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30], "b is closed, and does not count"


async def test_a_cancelled_task_that_blames_its_server_ends(store: Store, worker: Worker) -> None:
    await declare(store)
    task_id = await add(store)
    (claim,) = await worker.claim_kinds(ROOM)
    await store.cancel([task_id])
    verdict = await end(store, claim, ServerFault(error=ERROR, otherwise=FAILED))
    assert verdict.state is State.CANCELLED


async def test_a_command_that_blames_its_server_never_runs_again(store: Store, worker: Worker) -> None:
    await declare(store)
    await add(store, kind="repair", is_command=True, provider="gpu", target="a")
    (claim,) = await worker.claim_kinds(COMMANDS)
    assert (await end(store, claim, ServerFault(error=ERROR, otherwise=FAILED))).state is State.FAILED


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("probe_timeout", [None, TIMEOUT])
async def test_a_command_for_a_server_runs_although_the_server_is_out_of_service(
    store: Store, worker: Worker, probe_timeout: int | None
) -> None:
    await declare(store, capacity=1, probe_timeout=probe_timeout, backoff_first=HOUR)
    await run(store, worker, "xxxx")
    await add(store, target="a")
    command = await add(store, kind="repair", is_command=True, provider="gpu", target="a")
    other = await add(store, kind="repair", is_command=True, provider="gpu", target="a")
    (claim,) = await worker.claim_kinds(ROOM, COMMANDS)
    assert (claim.id, claim.server) == (command, "a")
    assert await worker.claim_kinds(ROOM, COMMANDS) == [], "its capacity holds for commands, too"
    await worker.finish(claim, OUTCOMES["succeeded"])
    assert (await server(store)).is_out
    (claim,) = await worker.claim_kinds(ROOM, COMMANDS)
    assert claim.id == other


async def test_a_command_for_a_closed_server_waits(store: Store, worker: Worker) -> None:
    await store.declare([], [NewProvider(name="gpu", servers=pool(a=0))])
    await add(store, kind="repair", is_command=True, provider="gpu", target="a")
    assert await worker.claim_kinds(COMMANDS) == []


async def test_a_command_for_any_server_gets_one_that_is_in_service(store: Store, worker: Worker) -> None:
    await declare(store, backoff_first=HOUR)
    await run(store, worker, "xxxx")
    await add_many(store, 5, kind="repair", is_command=True, provider="gpu")
    claims = await worker.claim_kinds(COMMANDS)
    assert [claim.server for claim in claims] == ["b"] * 4
