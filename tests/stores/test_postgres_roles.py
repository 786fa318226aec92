"""The roles of a database: each can do its work with the printed grants, and nothing beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import asyncpg
import pytest
from tests.postgres_server import DISTRIBUTED_SCHEMA, SCHEMA, administer, distributed_url, empty, store_url
from tests.stores.actions import EMPTY_NODE, OUTCOMES, Worker, add
from tests.stores.everything import do_everything, do_everything_with_demands, do_everything_with_limits
from tests.stores.one_postgres import ours_only, role, statements, url_of_role
from tests.support import PATIENCE_SECONDS, until, until_state

from synergon import (
    Context,
    Engine,
    Health,
    KeyConflict,
    NotAvailable,
    OptionError,
    PermissionDenied,
    Rate,
    Retention,
    Server,
    State,
    TaskFailed,
)
from synergon.call import Call
from synergon.model.claims import KindRequest
from synergon.model.tasks import Cutoffs, Insertion, RequestKey
from synergon.stores import open_store
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.grants import ROLES

pytestmark = ours_only


class Place(NamedTuple):
    """A schema of the database with its tables, and the URL of its owner."""

    schema: str
    profile: str
    url: str

    def url_of(self, name: str) -> str:
        return url_of_role(name, schema=self.schema, profile=self.profile)

    def grants(self, duty: str, name: str) -> list[str]:
        """The printed statements, one by one."""
        return statements(PostgresStore(self.url).grants_sql(duty, name))


@pytest.fixture(params=["standard", "distributed"])
async def place(request: pytest.FixtureRequest) -> Place:
    """A schema of each profile."""
    standard = request.param == "standard"
    url = store_url() if standard else distributed_url()
    store = PostgresStore(url)
    await store.open()
    await store.close()
    return Place(SCHEMA if standard else DISTRIBUTED_SCHEMA, request.param, url)


@pytest.fixture
def granted(place: Place, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a role with the grants for these duties."""
    duties = request.param if isinstance(request.param, tuple) else (request.param,)
    with role("granted_role"):
        for duty in duties:
            for statement in place.grants(duty, "granted_role"):
                administer(statement)
        yield "granted_role"


def granted_to(*duties: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("granted", [duties], indirect=True, ids=["+".join(duties)])


class App:
    """Kinds under every kind of limit, with a gate that holds some of them."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.engine = engine = Engine(url, lease=5, sweep=0.2, **settings)
        self.gate = asyncio.Event()
        engine.limit("license", 2)
        self.pool = pool = engine.provider("gpu", servers={"a": 1, "b": 2}, health=Health(failures=1, backoff=0.01))

        @engine.task
        async def plain(number: int = 0) -> int:
            return number

        @engine.task(limits=["license"])
        async def licensed() -> None: ...

        @engine.task(limit_by="{customer}", limit=1, rate=Rate(100, per=1))
        async def lined(customer: str) -> str:
            return customer

        @engine.task(retry=2)
        async def shaky(ctx: Context) -> int:
            if ctx.attempt < 2:
                raise ValueError("not yet")
            return ctx.attempt

        @engine.task
        async def broken() -> None:
            raise ValueError("never")

        @engine.task
        async def parent(ctx: Context) -> None:
            await ctx.enqueue(plain.with_options(key="child").call(7))
            ctx.progress(0.5)

        @engine.task
        async def writes(ctx: Context) -> int:
            async with ctx.transaction() as connection:
                return int(await connection.fetchval("SELECT 1"))

        @engine.task
        async def hold() -> None:
            await self.gate.wait()

        @pool.task
        async def served(server: Server) -> str:
            return server.address

        @pool.task(retry=3)
        async def unwell(ctx: Context) -> None:
            if ctx.attempt < 3:
                raise ConnectionError("no route")

        @pool.command
        async def load(server: Server) -> str:
            return server.address

        self.plain, self.licensed, self.lined, self.shaky, self.broken = plain, licensed, lined, shaky, broken
        self.parent, self.writes, self.hold = parent, writes, hold
        self.served, self.unwell, self.load = served, unwell, load

    async def enqueue_all(self) -> list[Any]:
        """Tasks in every way in which they can be enqueued."""
        handles = [
            await self.plain.enqueue(1),
            *await self.plain.enqueue_many([(number,) for number in range(5)]),
            await self.plain.with_options(queue="elsewhere", delay=0.2, expires_in=60, tags=["x"]).enqueue(),
            await self.plain.with_options(key="one", title="one", meta={"a": 1}).enqueue(),
            await self.plain.with_options(key="one").enqueue(),
            *await self.engine.enqueue(self.plain.with_options(key=key).call() for key in ("two", "three")),
            *await self.licensed.enqueue_many([()] * 3),
            *await self.lined.enqueue_many([("ada",)] * 3),
            await self.lined.with_options(priority=5).enqueue("ada"),
            await self.shaky.enqueue(),
            await self.served.enqueue(),
            await self.unwell.enqueue(),
            *(await self.load.enqueue(to="each")).values(),
        ]
        handles.append(await self.plain.with_options(key="taken", delay=2).enqueue())
        with pytest.raises(KeyConflict):
            await self.plain.with_options(key="taken", on_conflict="raise").enqueue()
        group = await self.engine.group("all", [self.plain.call(), self.lined.call("bob")], then=self.plain.call(9))
        assert group.id
        await self.engine.group("none", [], then=self.lined.call("eve"))
        return handles


@asynccontextmanager
async def session_of(place: Place, name: str) -> AsyncIterator[Any]:
    """A connection of the role, for statements of its own."""
    connection = await PostgresStore(place.url_of(name)).address.hosts.connect(timeout=PATIENCE_SECONDS)
    try:
        yield connection
    finally:
        await connection.close()


async def refuses(place: Place, name: str, *statements: str) -> None:
    """The database takes none of these from the role."""
    async with session_of(place, name) as connection:
        for statement in statements:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement.replace("{s}", place.schema))


NOT_FOR_THOSE_WHO_DO_NOT_RUN: Final = (
    "UPDATE {s}.task SET node_id = 'me', claim_no = claim_no + 1",
    "INSERT INTO {s}.node (id) VALUES ('me')",
    "DELETE FROM {s}.node",
    "UPDATE {s}.node SET leased_until = now() + interval '1 hour'",
    "UPDATE {s}.node SET address = 'http://elsewhere'",
)
NOT_FOR_ANY: Final = (
    "UPDATE {s}.meta SET value = 'x' WHERE name = 'secret'",
    "DELETE FROM {s}.meta",
    "DELETE FROM {s}.lock_row",
    "UPDATE {s}.lock_row SET name = 'x'",
    "TRUNCATE {s}.task",
    "ALTER TABLE {s}.task ADD COLUMN mine text",
    "CREATE TABLE {s}.mine (id int)",
)
NOT_FOR_THOSE_WHO_ONLY_ENQUEUE: Final = (
    *("SELECT payload FROM {s}.task", "SELECT meta FROM {s}.task", "SELECT errors FROM {s}.task"),
    *("SELECT result FROM {s}.history", "SELECT * FROM {s}.audit_log", "SELECT * FROM {s}.tally"),
    *("UPDATE {s}.task SET payload = '{}'", "UPDATE {s}.task SET kind = 'x'", "UPDATE {s}.task SET queue = 'x'"),
    *("UPDATE {s}.task SET cancel_requested = true", "UPDATE {s}.task SET priority = 9", "DELETE FROM {s}.task"),
    *("UPDATE {s}.server SET address = 'x'", "UPDATE {s}.server SET capacity = 9", "DELETE FROM {s}.server"),
    *("INSERT INTO {s}.server VALUES ('gpu', 'x', 1)", "UPDATE {s}.provider SET declared = ''"),
    *("UPDATE {s}.task_limit SET value = 9", "UPDATE {s}.task_limit SET declared = ''"),
    "INSERT INTO {s}.task_limit VALUES ('x', '', 1)",
    *("UPDATE {s}.queue SET paused_at = now()", "INSERT INTO {s}.queue VALUES ('x', now())"),
    "INSERT INTO {s}.history SELECT * FROM {s}.history",
    "INSERT INTO {s}.audit_log (verb, subject, value, who) VALUES ('pause', 'x', '', 'x')",
    *NOT_FOR_THOSE_WHO_DO_NOT_RUN,
    *NOT_FOR_ANY,
)


# ---------------------------------------------------------------- producer


@granted_to("producer")
async def test_a_producer_enqueues_everything_and_a_worker_runs_it(place: Place, granted: str) -> None:
    owner = App(place.url)
    async with owner.engine:  # workers have declared limits and servers before
        producer = App(place.url_of(granted))
        async with producer.engine:
            handles = await producer.enqueue_all()
            async with session_of(place, granted) as connection, connection.transaction():
                for call in (producer.plain, producer.lined.with_options(key="mine")):
                    arguments = () if call is producer.plain else ("ada",)
                    handles.append(await call.with_options(conn=connection).enqueue(*arguments))
            assert await producer.engine.nodes() == []
        async with owner.engine.worker(drain=True):
            pass
        records = [await owner.engine.get(handle.id) for handle in handles]
        assert {record.state for record in records} == {State.SUCCEEDED}
        counts = await owner.engine.counts()
        assert set(counts) - {state for state, number in counts.items() if not number} == {State.SUCCEEDED}


@granted_to("producer")
async def test_a_producer_reads_and_changes_nothing_of_others(place: Place, granted: str) -> None:
    owner = App(place.url)
    async with owner.engine:
        await owner.plain.with_options(key="theirs").enqueue(1)
        producer = App(place.url_of(granted))
        async with producer.engine:
            handle = await producer.plain.enqueue()
            for call in (
                lambda: handle.result(5),
                handle.status,
                lambda: producer.engine.tasks(),
                lambda: producer.engine.cancel(handle.id),
                lambda: producer.engine.pause("default"),
                lambda: producer.engine.set_limit("license", 9),
                lambda: producer.engine.set_servers("gpu", {"evil": 1}),
                lambda: producer.plain.with_options(key="theirs", on_conflict="replace").enqueue(2),
            ):
                with pytest.raises(PermissionDenied, match="--print-grants"):
                    await call()
        with pytest.raises(PermissionDenied):
            async with producer.engine.worker():
                pass
        await refuses(place, granted, *NOT_FOR_THOSE_WHO_ONLY_ENQUEUE)
        assert {server.address for server in await owner.engine.servers()} == {"a", "b"}


@granted_to("producer", "viewer")
async def test_a_producer_that_is_a_viewer_waits_for_results(place: Place, granted: str) -> None:
    owner, producer = App(place.url), App(place.url_of(granted))
    async with owner.engine.worker(), producer.engine:
        assert await (await producer.plain.enqueue(4)).result(PATIENCE_SECONDS) == 4
        with pytest.raises(TaskFailed):
            await (await producer.broken.enqueue()).result(PATIENCE_SECONDS)
        assert await producer.load.send(to="a") == "a"


@granted_to("producer")
async def test_what_a_producer_declares_is_left_to_workers(
    place: Place, granted: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = App(place.url_of(granted))
    async with producer.engine:  # no worker has ever been here
        handles = [await producer.served.enqueue(), *await producer.lined.enqueue_many([("ada",)] * 3)]
        assert "stay as they are until a worker declares them" in caplog.text
        async with App(place.url).engine.worker(drain=True):
            pass
    async with Engine(place.url) as reader:
        assert {(await reader.get(handle.id)).state for handle in handles} == {State.SUCCEEDED}


@granted_to("producer")
async def test_what_a_producer_enqueues_is_in_statistics_that_it_cannot_read(place: Place, granted: str) -> None:
    producer = App(place.url_of(granted))
    async with producer.engine:
        await producer.plain.enqueue(1)
        with pytest.raises(PermissionDenied):
            await producer.engine.statistics()
    async with Engine(place.url) as reader:
        assert [one.accepted for one in await reader.statistics()] == [1]


# ---------------------------------------------------------------- worker


@granted_to("worker")
async def test_a_worker_runs_a_whole_workload(place: Place, granted: str) -> None:
    keep = Retention(succeeded="1h", failed=0, cancelled=0)
    worker, operator = App(place.url_of(granted), retention=keep), App(place.url)
    async with operator.engine, worker.engine.worker():
        handles = await worker.enqueue_all()
        handles += [await worker.parent.enqueue(), await worker.writes.enqueue()]
        handles.append(await worker.plain.with_options(key="taken", on_conflict="replace").enqueue(8))
        for handle in handles:
            await worker.engine.wait(handle.id, timeout=PATIENCE_SECONDS)
        assert {(await worker.engine.get(handle.id)).state for handle in handles} == {State.SUCCEEDED}
        broken = await worker.broken.enqueue()
        with pytest.raises(TaskFailed):
            await broken.result(PATIENCE_SECONDS)

        held = await worker.hold.enqueue()
        await until_state(held, State.RUNNING)
        await operator.engine.cancel(held.id)
        await until_state(held, State.CANCELLED)
        await operator.engine.pause("default")
        await operator.engine.resume("default")
        assert worker.engine._node is not None
        await operator.engine.cordon(worker.engine._node.id)
        await until(lambda: _is_done(operator.engine))
    assert await operator_sees_no_nodes(place)


async def _is_done(engine: Engine) -> bool:
    return (await engine.audit())[0].outcome is not None


async def operator_sees_no_nodes(place: Place) -> bool:
    async with Engine(place.url) as engine:
        return await engine.nodes() == []


@granted_to("worker")
async def test_a_worker_takes_over_from_the_dead_and_prunes(place: Place, granted: str) -> None:
    store = PostgresStore(place.url_of(granted))
    await store.open()
    try:
        dead = await Worker.start(store)
        task_id = await add(store)
        (claim,) = await dead.claim()
        assert claim.id == task_id
        await store.reap([dead.node_id], 10)
        await store.wake(10)
        live = await Worker.start(store, "node-2")
        (again,) = await live.claim()
        assert (await live.finish(again, OUTCOMES["succeeded"])).state is State.SUCCEEDED
        await store.prune(Cutoffs(succeeded=0, failed=0, cancelled=0), 10)
        assert await store.get([task_id]) == [None]
        await store.unregister(live.node_id)
    finally:
        await store.close()


@granted_to("worker")
async def test_a_worker_declares_another_retention_without_an_entry_in_the_audit(place: Place, granted: str) -> None:
    first, hasty = App(place.url), App(place.url_of(granted), retention=Retention(succeeded="1h"))
    async with first.engine:
        async with first.engine.worker():
            pass
        async with hasty.engine.worker():
            assert (await first.engine.retention()).succeeded == 3600
        assert await first.engine.audit() == []


@granted_to("worker")
async def test_a_worker_takes_no_operator_action(place: Place, granted: str) -> None:
    worker = App(place.url_of(granted))
    async with worker.engine:
        for call in (
            lambda: worker.engine.pause("default"),
            lambda: worker.engine.set_limit("license", 9),
            lambda: worker.engine.drain("nobody"),
        ):
            with pytest.raises(PermissionDenied):
                await call()
    await refuses(
        place,
        granted,
        "UPDATE {s}.queue SET paused_at = now()",
        "INSERT INTO {s}.audit_log (verb, subject, value, who) VALUES ('pause', 'x', '', 'x')",
        "UPDATE {s}.audit_log SET who = 'x'",
        *NOT_FOR_ANY,
    )


# ---------------------------------------------------------------- viewer


@granted_to("viewer")
async def test_a_viewer_sees_everything_and_changes_nothing(place: Place, granted: str) -> None:
    owner, viewer = App(place.url), App(place.url_of(granted))
    async with owner.engine.worker(name="here"), viewer.engine:
        done = await owner.plain.enqueue(3)
        await done.result(PATIENCE_SECONDS)
        group = await owner.engine.group("all", [owner.plain.call()])
        held = await owner.hold.enqueue()
        await until_state(held, State.RUNNING)
        await owner.engine.pause("paused")
        waiting = await owner.plain.with_options(queue="paused").enqueue()
        engine = viewer.engine
        assert (await engine.get(done.id)).payload is not None
        assert engine.result_of(await engine.get(done.id), viewer.plain) == 3
        assert held.id in {task.id for task in await engine.tasks(state="running")}
        assert (await engine.counts())[State.RUNNING] >= 1
        assert "paused" in {queue.name for queue in await engine.queues()}
        assert [node.name for node in await engine.nodes()] == ["here"]
        assert {limit.name for limit in await engine.limits()} >= {"license"}
        assert {server.address for server in await engine.servers()} == {"a", "b"}
        assert (await engine.audit())[0].verb == "pause"
        assert (await engine.explain(held.id)).sentence.startswith("running on here")
        assert "paused" in (await engine.explain(waiting.id)).sentence
        assert (await engine.wait(done.id)).state is State.SUCCEEDED
        async for event in engine.events():
            assert event.task_id == done.id
            break
        assert (await owner.engine.wait(done.id)).state is State.SUCCEEDED
        assert group.id
        for call in (
            lambda: viewer.plain.enqueue(),
            lambda: engine.cancel(held.id),
            lambda: engine.retry(done.id),
            lambda: engine.delete(done.id),
            lambda: engine.set_priority(waiting.id, 3),
            lambda: engine.reschedule(waiting.id, delay=5),
            lambda: engine.pause("default"),
            lambda: engine.resume("paused"),
            lambda: engine.set_limit("license", 3),
            lambda: engine.set_servers("gpu", {"x": 1}),
        ):
            with pytest.raises(PermissionDenied):
                await call()
        await refuses(
            place,
            granted,
            *(statement for statement in NOT_FOR_THOSE_WHO_ONLY_ENQUEUE if not statement.startswith("SELECT")),
            "INSERT INTO {s}.task (kind, queue, state, priority, run_at, payload, enqueued_at) "
            "VALUES ('x', 'x', 'ready', 0, now(), '{}', now())",
            "INSERT INTO {s}.queue (name) VALUES ('x')",
            "SELECT * FROM {s}.task FOR UPDATE",
        )
        owner.gate.set()


# ---------------------------------------------------------------- operator


@granted_to("operator")
async def test_an_operator_does_everything_that_operators_do(place: Place, granted: str) -> None:
    owner, operator = App(place.url), App(place.url_of(granted))
    async with owner.engine.worker(), operator.engine:
        engine = operator.engine
        assert owner.engine._node is not None
        await engine.pause("default")
        ready = await owner.plain.enqueue(1)
        first, second = await owner.lined.enqueue_many([("ada",)] * 2)
        group = await owner.engine.group("all", [owner.plain.call()] * 2, then=owner.plain.call())
        commands_without_server = (await owner.load.enqueue(to="b"))["b"]
        later = await owner.plain.with_options(delay=3600).enqueue(2)
        assert await engine.cancel(ready.id)
        await engine.retry(ready.id)
        await engine.set_priority(ready.id, 7)
        await engine.reschedule(later.id, delay=0)
        assert await engine.cancel(first.id)
        assert await engine.cancel_group(group.id) == 2
        await engine.set_limit("license", 5)
        await engine.set_retention(Retention(failed="90d"))
        assert (await engine.status()).overdue == 0
        await engine.set_limit("key:lined", 3)
        await engine.set_servers("gpu", {"a": 4, "c": 1})
        assert (await ended(owner, commands_without_server)).state in (State.FAILED, State.SUCCEEDED)
        assert await engine.resume("default")
        for handle in (ready, second, later):
            assert (await ended(owner, handle)).state is State.SUCCEEDED
        await engine.delete(ready.id)
        held = await owner.hold.enqueue()
        await until_state(held, State.RUNNING)
        assert await engine.cancel(held.id)
        await until_state(held, State.CANCELLED)
        await engine.cordon(owner.engine._node.id)
        await engine.uncordon(owner.engine._node.id)
        assert {server.address for server in await engine.servers()} == {"a", "c"}
        assert {entry.verb for entry in await engine.audit()} >= {"pause", "resume", "set_limit", "set_servers"}
        await engine.drain(owner.engine._node.id)
        await owner.engine._node.stopped()


@granted_to("operator")
async def test_an_operator_carries_out_what_callers_of_a_server_request(place: Place, granted: str) -> None:
    owner, operator = App(place.url), App(place.url_of(granted))
    async with owner.engine, operator.engine:
        control, store = operator.engine._control, operator.engine._store
        ready, other = await owner.plain.enqueue(1), await owner.plain.enqueue(2)
        assert all(moved.done for moved in await control.reschedule([ready.id], delay=3_600_000_000))
        assert all(moved.done for moved in await control.set_priority([ready.id], 5))
        assert all(moved.done for moved in await control.update_meta([ready.id], {"customer": 42}))
        assert await operator.engine.cancel_all(kind="plain") == 2
        assert await operator.engine.retry_all(state="cancelled") == 2
        assert (await operator.engine.audit())[0].outcome == "2 tasks retried"
        flow = await owner.engine.chain([owner.plain.call(3), owner.plain.call(4)]).enqueue()
        assert (await control.cancel_group(flow.id)).outcome == "2 tasks cancelled"
        assert (await control.retry_flow(flow.id)).outcome == "2 tasks retried"
        task = owner.plain.call(5).to_new_task()
        request = RequestKey(key="request", digest="digest")
        first = await store.insert_for(task, "ada", request)
        assert await store.insert_for(task, "ada", request) == Insertion(first.id, False, None)
        assert all(moved.done for moved in await control.delete([other.id]))


async def ended(app: App, handle: Any) -> Any:
    return await app.engine.wait(handle.id, timeout=PATIENCE_SECONDS)


@granted_to("operator")
async def test_an_operator_runs_nothing_and_rewrites_nothing(place: Place, granted: str) -> None:
    operator = App(place.url_of(granted))
    with pytest.raises(PermissionDenied):
        async with operator.engine.worker():
            pass
    await refuses(
        place,
        granted,
        "UPDATE {s}.task SET payload = '{}'",
        "UPDATE {s}.history SET payload = '{}'",
        "UPDATE {s}.server SET address = 'x'",
        "UPDATE {s}.audit_log SET who = 'x'",
        "DELETE FROM {s}.audit_log",
        *NOT_FOR_THOSE_WHO_DO_NOT_RUN,
        *NOT_FOR_ANY,
    )


# ---------------------------------------------------------------- schedules

READS: Final = ("list", "get")
DEFINITIONS: Final = ("create", "update")
ACTIONS: Final = ("pause", "resume", "run plain", "run keyed", "run in a key queue", "delete")
MAY: Final[dict[str, tuple[str, ...]]] = {
    "producer": (),
    "worker": (*READS, *DEFINITIONS),
    "viewer": READS,
    "operator": (*READS, *DEFINITIONS, *ACTIONS),
}
"""What each role can do with schedules. A worker also declares those of its code, and fires all that are due."""


async def add_schedules(app: App) -> None:
    """Schedules of each kind of task, made by the owner of the tables."""
    calls: dict[str, Call[Any]] = {
        "plain": app.plain.call(1),
        "keyed": app.plain.with_options(key="one").call(2),
        "in a key queue": app.lined.call("ada"),
    }
    for name, call in calls.items():
        await app.engine.schedules.create(name, call, every="1h")


def operations_of(app: App) -> dict[str, Callable[[], Awaitable[object]]]:
    """Each operation of schedules, in an order in which all of them can be done."""
    schedules = app.engine.schedules
    return {
        "list": lambda: schedules.list(),
        "get": lambda: schedules.get("plain"),
        "create": lambda: schedules.create("mine", app.plain.call(), every="1h"),
        "update": lambda: schedules.update("plain", overlap="queue"),
        "pause": lambda: schedules.pause("plain"),
        "resume": lambda: schedules.resume("plain"),
        "run plain": lambda: schedules.run_now("plain"),
        "run keyed": lambda: schedules.run_now("keyed"),
        "run in a key queue": lambda: schedules.run_now("in a key queue"),
        "delete": lambda: schedules.delete("keyed"),
    }


@pytest.mark.parametrize("granted", ROLES, indirect=True)
async def test_each_role_does_with_schedules_what_it_may_and_nothing_else(
    place: Place, granted: str, request: pytest.FixtureRequest
) -> None:
    may = MAY[request.node.callspec.params["granted"]]
    owner, app = App(place.url), App(place.url_of(granted))
    async with owner.engine, app.engine:
        await add_schedules(owner)
        for name, operation in operations_of(app).items():
            before = await owner.engine.schedules.list(), len(await owner.engine.tasks()), await owner.engine.audit()
            if name in may:
                await operation()
                continue
            with pytest.raises(PermissionDenied, match="--print-grants"):
                await operation()
            after = await owner.engine.schedules.list(), len(await owner.engine.tasks()), await owner.engine.audit()
            assert after == before, name
        created = [task for task in await owner.engine.tasks() if task.kind in ("plain", "lined")]
        assert len(created) == sum(name.startswith("run") for name in may)


@granted_to("worker")
async def test_a_worker_declares_and_fires_schedules(place: Place, granted: str) -> None:
    owner, worker = App(place.url), App(place.url_of(granted))
    worker.engine.every("1h", name="declared")(worker.plain)
    async with owner.engine:
        await owner.engine.schedules.create("made", owner.lined.call("eve"), every="0.2s", overlap="queue")
        async with worker.engine.worker():
            await until(lambda: has_fired(owner.engine, "made"))
        assert (await owner.engine.schedules.get("declared")).is_declared


async def has_fired(engine: Engine, name: str) -> bool:
    return (await engine.schedules.get(name)).times_fired > 0


@granted_to("operator")
async def test_an_operator_retries_what_was_refused_or_is_suspect(place: Place, granted: str) -> None:
    owner, operator = App(place.url), App(place.url_of(granted))
    async with owner.engine, operator.engine:
        store = owner.engine._store
        handle = await owner.plain.enqueue()
        dead, live = await Worker.start(store, "dead"), await Worker.start(store, "live")
        await dead.claim("plain")
        await store.reap([dead.node_id], 10)
        (claim,) = await live.claim_kinds(
            KindRequest(kind="plain", count=1), totals=dict(EMPTY_NODE), free=dict(EMPTY_NODE)
        )
        await live.finish(claim, OUTCOMES["succeeded"])
        await operator.engine.retry(handle.id)
        record = await operator.engine.get(handle.id)
        assert (record.state, record.is_suspect, record.requirements) == (State.READY, False, "")


class LeastStore(PostgresStore):
    """The store of a role that is not the owner of its tables."""

    async def replace_secret(self) -> None:
        """Only the owner may."""
        with pytest.raises(PermissionDenied):
            await super().replace_secret()


@granted_to("worker", "operator")
async def test_workers_and_operators_together_say_every_statement(place: Place, granted: str) -> None:
    for do in (do_everything, do_everything_with_demands, do_everything_with_limits):
        store = LeastStore(place.url_of(granted))
        await store.open()
        try:
            await do(store)
        finally:
            await store.close()
        empty(place.schema)


# ---------------------------------------------------------------- printing


@pytest.mark.parametrize("duty", ROLES)
def test_the_name_of_a_role_is_quoted_where_it_must_be(place: Place, duty: str) -> None:
    assert all(statement.endswith(" TO shop") for statement in place.grants(duty, "shop"))
    assert all(statement.endswith(' TO "a ""b"') for statement in place.grants(duty, 'a "b'))


def test_unknown_roles_and_stores_without_roles_are_refused(sqlite_url: str, memory_url: str) -> None:
    store = open_store("postgresql://host/db")
    with pytest.raises(OptionError, match="there are grants for producer, worker, viewer, operator, got 'boss'"):
        store.grants_sql("boss", "boss")
    for name in ("", "a\nb", "x" * 64):
        with pytest.raises(OptionError, match="printable characters"):
            store.grants_sql("viewer", name)
    for url in (sqlite_url, memory_url):
        with pytest.raises(NotAvailable, match="roles"):
            open_store(url).grants_sql("viewer", "viewer")
