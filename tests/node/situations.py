"""Every cause for which a task may wait: how it comes about, what is said of it, and what lets the task go on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from tests.node.counted_functions import node_of
from tests.node.explained_nodes import Crew
from tests.stores.actions import new_node
from tests.support import PATIENCE_SECONDS, a_row, until, until_state

from synergon import (
    Engine,
    Handle,
    Rate,
    Resources,
    Retry,
    State,
    Why,
)
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.requirements import parse_requirements

PERHAPS_KEPT: Final = r"(; node-\d has reserved capacity for it)?"
"""After a while one of the nodes does; where the machine is busy, the question comes after that."""


class Situation(NamedTuple):
    """A task that waits, what is said of it, and what lets it go on."""

    handle: Handle[Any]
    pattern: str
    why: Why
    remove: Callable[[], Awaitable[Any]]


Scenario = Callable[[Crew], Awaitable[Situation]]


async def open_gate(crew: Crew) -> None:
    crew.gate.open()


# ---------------------------------------------------------------- not yet


async def delayed(crew: Crew) -> Situation:
    handle = await crew.enqueue("quick", delay=3600)
    return Situation(
        handle,
        r"scheduled: its time comes in (59|60) min",
        Why.DELAYED,
        lambda: crew.first.reschedule(handle.id, delay=0),
    )


async def retrying(crew: Crew) -> Situation:
    handle = await crew.enqueue("shaky", retry=Retry(attempts=3, first=3600, cap=3600, jitter=0))
    await until_state(handle, State.SCHEDULED)
    return Situation(
        handle,
        r"scheduled: retry 1 of 2 in (59|60) min after ConnectionError",
        Why.RETRYING,
        lambda: crew.first.reschedule(handle.id, delay=0),
    )


async def snoozed(crew: Crew) -> Situation:
    handle = await crew.enqueue("snoozing")
    await until_state(handle, State.SCHEDULED)
    return Situation(
        handle,
        r"scheduled: its function asked to be run again in (59|60) min",
        Why.SNOOZED,
        lambda: crew.first.reschedule(handle.id, delay=0),
    )


async def its_turn(crew: Crew) -> Situation:
    await (await crew.enqueue("paced")).result(timeout=PATIENCE_SECONDS)
    handle = await crew.enqueue("paced")
    pattern = r"scheduled: it may start (in [123] s|now) by the rate of the key queue of its kind"
    return Situation(handle, pattern, Why.RATE, _nothing)


async def _nothing() -> None:
    """It comes by itself."""


async def in_line(crew: Crew) -> Situation:
    bill = crew.first.kinds["bill"]
    first: Handle[Any] = await bill.enqueue("ada")
    await until_state(first, State.RUNNING)
    await bill.enqueue("ada")
    handle: Handle[Any] = await bill.enqueue("ada")
    return Situation(
        handle,
        r"waits: the key queue of its limit key 'ada' is full: at most 1 at once, position 2",
        Why.KEY_QUEUE,
        lambda: open_gate(crew),
    )


async def dependent(crew: Crew) -> Situation:
    engine = crew.first
    group = await engine.group("all", [engine.call("hold"), engine.call("hold")], then=engine.call("quick"))
    assert group.then is not None
    return Situation(
        group.then,
        rf"waits for task {group.handles[0].id} \(hold, \w+\), task {group.handles[1].id} \(hold, \w+\)",
        Why.DEPENDENCY,
        lambda: open_gate(crew),
    )


# ---------------------------------------------------------------- what all nodes share


async def paused(crew: Crew) -> Situation:
    await crew.first.pause("mail")
    handle = await crew.enqueue("quick", queue="mail")
    return Situation(
        handle,
        r"ready, due for \d+ s; queue mail is paused since \d\d:\d\d",
        Why.PAUSED,
        lambda: crew.first.resume("mail"),
    )


async def limit_full(crew: Crew) -> Situation:
    await crew.running("stored", 1)
    handle = await crew.enqueue("stored")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: limit db has 1 of 1 in use",
        Why.LIMIT,
        lambda: crew.first.set_limit("db", 2),
    )


async def limit_rate(crew: Crew) -> Situation:
    await crew.first.set_limit("db", 5, rate=Rate(1, per="1h"))
    await crew.running("stored", 1)
    handle = await crew.enqueue("stored")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: rate db: 1 per hour; free in \d+ min",
        Why.LIMIT_RATE,
        lambda: crew.first.set_limit("db", rate=None),
    )


async def limit_closed(crew: Crew) -> Situation:
    await crew.first.set_limit("db", 0)
    handle = await crew.enqueue("stored")

    async def remove() -> None:
        await crew.first.set_limit("db", 1)

    return Situation(handle, r"ready, due for \d+ s; waits for a permit: limit db is closed", Why.LIMIT, remove)


async def kind_full(crew: Crew) -> Situation:
    await crew.running("only", 1)
    handle = await crew.enqueue("only")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: 1 of at most 1 tasks of kind `only` run on all nodes together",
        Why.LIMIT,
        lambda: open_gate(crew),
    )


async def server_full(crew: Crew) -> Situation:
    await crew.running("serve", 1)
    await crew.enqueue("serve")
    handle = await crew.enqueue("serve")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: server http://gpu-1 has 1 of 1 in use, position 2",
        Why.SERVER,
        lambda: open_gate(crew),
    )


async def server_closed(crew: Crew) -> Situation:
    await crew.first.set_servers("pool", {"http://gpu-1": 0})
    handle = await crew.enqueue("serve")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: server http://gpu-1 is closed",
        Why.SERVER,
        lambda: crew.first.set_servers("pool", {"http://gpu-1": 1}),
    )


async def server_resting(crew: Crew) -> Situation:
    broken = await crew.enqueue("break_it")
    await until_state(broken, State.FAILED)
    handle = await crew.enqueue("serve")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: server http://gpu-1 backs off until [\d: -]+ \(in (59|60) min\)",
        Why.BACKED_OFF,
        lambda: crew.first.set_servers("pool", {"http://gpu-2": 1}),
    )


async def pool_empty(crew: Crew) -> Situation:
    await crew.first.set_servers("pool", {})
    handle = await crew.enqueue("serve")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: provider pool has no servers",
        Why.NO_SERVERS,
        lambda: crew.first.set_servers("pool", {"http://gpu-1": 1}),
    )


async def prefix_full(crew: Crew) -> Situation:
    await crew.first.set_servers("pool", {"http://gpu/1": 1, "http://gpu/2": 1})
    await crew.first.set_limit("http://gpu", 1)
    await crew.running("serve", 1)
    handle = await crew.enqueue("serve")
    return Situation(
        handle,
        r"ready, due for \d+ s; waits for a permit: server http://gpu/\d has 1 of 1 in use, "
        r"limit http://gpu has 1 of 1 in use",
        Why.LIMIT,
        lambda: crew.first.set_limit("http://gpu", None),
    )


# ---------------------------------------------------------------- what each node says


async def slots_full(crew: Crew) -> Situation:
    await crew.running("hold", 2 * len(crew.engines))
    handle = await crew.enqueue("hold")
    return Situation(handle, crew.each("hold", r"is full \(2 of 2 slots in use\)"), Why.SLOTS, lambda: open_gate(crew))


async def suspect_not_alone(crew: Crew) -> Situation:
    await crew.running("hold", 2 * len(crew.engines))
    handle = await crew.enqueue("quick")
    store = crew.first._store
    await store.register(a_row("dead", "quick"))
    await store.claim(ClaimRequest(node_id="dead", kinds=(KindRequest(kind="quick", count=1),), limit=1))
    await store.reap(["dead"], 1)
    clause = r"is full \(2 of 2 slots in use\) and runs other tasks, and this suspect must run alone"
    told = r"\1; suspect, so it runs isolated and behind others of its priority \\(1 node died while it ran there\\)"
    pattern = re.sub(r"^(ready, due for \\d\+ s)", told, crew.each("quick", clause))
    return Situation(handle, pattern + PERHAPS_KEPT, Why.OCCUPIED, lambda: open_gate(crew))


async def kind_full_on_nodes(crew: Crew) -> Situation:
    await crew.running("single", len(crew.engines))
    handle = await crew.enqueue("single")
    clause = "runs 1 of at most 1 of the kind"
    return Situation(handle, crew.each("single", clause), Why.MAX_RUNNING, lambda: open_gate(crew))


async def resource_full(crew: Crew) -> Situation:
    await crew.running("train", len(crew.engines))
    handle = await crew.enqueue("train")
    clause = r"is full \(gpu 1 of 1 used by task \d+\)"
    return Situation(handle, crew.each("train", clause) + PERHAPS_KEPT, Why.RESOURCE, lambda: open_gate(crew))


async def memory_short(crew: Crew) -> Situation:
    await crew.running("hold", len(crew.engines), cost=Resources(ram="3GiB"))
    handle = await crew.enqueue("quick", cost=Resources(ram="2GiB"))
    clause = r"is full \(ram 3 GiB of 4 GiB used by task \d+, and it needs 2 GiB\)"
    return Situation(handle, crew.each("quick", clause) + PERHAPS_KEPT, Why.RESOURCE, lambda: open_gate(crew))


async def queue_full_on_nodes(crew: Crew) -> Situation:
    """Its nodes bound the queue `bounded`, as the test says."""
    await crew.running("hold", len(crew.engines), queue="bounded")
    handle = await crew.enqueue("quick", queue="bounded")
    clause = "runs 1 of at most 1 of queue bounded"
    return Situation(handle, crew.each("quick", clause), Why.QUEUE_BOUND, lambda: open_gate(crew))


async def provider_full_on_nodes(crew: Crew) -> Situation:
    await crew.running("pass_by", len(crew.engines))
    handle = await crew.enqueue("pass_by")
    clause = "runs 1 of at most 1 of provider narrow"
    return Situation(handle, crew.each("pass_by", clause), Why.PROVIDER_BOUND, lambda: open_gate(crew))


async def cordoned(crew: Crew) -> Situation:
    for engine in crew.engines:
        await crew.first.cordon(node_of(engine).id)
    handle = await crew.enqueue("quick")

    async def remove() -> None:
        await crew.first.uncordon(node_of(crew.engines[-1]).id)

    return Situation(handle, crew.each("quick", r"is cordoned since \d\d:\d\d"), Why.CORDONED, remove)


async def label_missing(crew: Crew) -> Situation:
    handle = await crew.enqueue("quick", needs={"gpu:a100"})
    pattern = crew.each("quick", "lacks label gpu:a100") + "; no live node could ever run it"
    return Situation(handle, pattern, Why.LABEL_MISSING, lambda: _helped(crew, labels={"gpu:a100"}))


async def label_forbidden(crew: Crew) -> Situation:
    handle = await crew.enqueue("quick", forbids={"zone:eu"})
    pattern = crew.each("quick", "has the forbidden label zone:eu") + "; no live node could ever run it"
    return Situation(handle, pattern, Why.LABEL_FORBIDDEN, lambda: _helped(crew, labels={"zone:us"}))


async def too_small(crew: Crew) -> Situation:
    handle = await crew.enqueue("quick", cost=Resources(gpu=2))
    clause = r"is too small \(it needs gpu 2, and the node has 1 in total\)"
    pattern = crew.each("quick", clause) + "; no live node could ever run it"
    return Situation(handle, pattern, Why.TOO_SMALL, lambda: _helped(crew, resources=Resources(gpu=2)))


async def other_queues(crew: Crew) -> Situation:
    """Its nodes serve the queue `default`, as the test says."""
    handle = await crew.enqueue("quick", queue="mail")
    return Situation(
        handle,
        crew.each("quick", "does not serve queue mail"),
        Why.OTHER_QUEUES,
        lambda: _helped(crew, queues=["mail"]),
    )


async def unknown_kind(crew: Crew) -> Situation:
    (handle,) = await crew.first.enqueue([crew.first.call("nobody_has_it")])
    return Situation(
        handle,
        r"ready, due for \d+ s; no live node knows kind `nobody_has_it`",
        Why.UNKNOWN_KIND,
        lambda: _helped(crew, kind="nobody_has_it"),
    )


async def refused(crew: Crew) -> Situation:
    handle = await crew.enqueue("asked")
    others = "".join(rf", node-{number} asks can_accept before it claims one" for number in range(1, len(crew.engines)))
    plural = "1 node runs" if len(crew.engines) == 1 else f"{len(crew.engines)} nodes run"

    async def remove() -> None:
        crew.accepts = True

    return Situation(
        handle,
        rf"ready, due for \d+ s; {plural} `asked`: node-0 has rejected it, and asks again (in 1 s|now){others}",
        Why.REJECTED,
        remove,
    )


async def does_not_fit(crew: Crew) -> Situation:
    """Its producer is newer than all nodes that have answered. One more node of the kind has a row."""
    newer = replace(new_node("newer"), kinds=("quick",))
    await crew.first._store.register(newer)
    producer = await crew.stack.enter_async_context(Engine(crew.first.settings.url))
    (handle,) = await producer.enqueue([producer.call("quick", loud=True)])

    async def is_refused() -> bool:
        for engine in crew.engines:
            node_of(engine).scheduler.wake(["quick"])
        record = await handle.status()
        refused_by = parse_requirements(record.requirements).refused_by if record.requirements else ()
        return len(refused_by) == len(crew.engines)

    await until(is_refused)
    misfit = r"has refused it \(the payload of task 'quick' does not fit its signature: .*`loud`\)"
    nodes = ", ".join(rf"node-{number} {misfit}" for number in range(len(crew.engines)))
    count = len(crew.engines) + 1
    pattern = rf"ready, due for \d+ s; {count} nodes run `quick`: {nodes}, name of newer has published no status yet"
    return Situation(handle, pattern, Why.REFUSED, lambda: _helped(crew))


async def _helped(crew: Crew, *, kind: str = "quick", **settings: Any) -> None:
    """One more node, which has what is needed."""
    engine = Engine(crew.first.settings.url, name="helper", sweep=0.05, **settings)

    @engine.task(name=kind)
    async def quick(*, loud: bool = False) -> None: ...

    await crew.stack.enter_async_context(engine.worker(grace=0))


SCENARIOS: list[Scenario] = [
    delayed,
    retrying,
    snoozed,
    its_turn,
    in_line,
    dependent,
    paused,
    limit_full,
    limit_rate,
    limit_closed,
    kind_full,
    server_full,
    server_closed,
    server_resting,
    pool_empty,
    prefix_full,
    slots_full,
    suspect_not_alone,
    kind_full_on_nodes,
    queue_full_on_nodes,
    provider_full_on_nodes,
    resource_full,
    memory_short,
    cordoned,
    label_missing,
    label_forbidden,
    too_small,
    other_queues,
    unknown_kind,
    refused,
    does_not_fit,
]
