"""The checks of `synergon doctor`. They change nothing: a database is neither created nor migrated."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from synergon.client.node_overview import is_alive
from synergon.doctor.misfits import find_misfits
from synergon.doctor.shortages import find_shortages
from synergon.doctor.unknown_variables import unknown_variables
from synergon.engine import Engine
from synergon.errors import StoreError
from synergon.model.cluster_status import ClusterStatus
from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.nodes import NodeRecord
from synergon.model.record import Record
from synergon.model.task_records import QueueRecord, TaskQuery
from synergon.node.attempts.deadlines import Timeouts
from synergon.options.store_urls import shown
from synergon.policies import Resources
from synergon.stores import open_store
from synergon.stores.base import SchemaVersions, Store
from synergon.stores.rules.action_texts import describe_retention
from synergon.stores.rules.shared_servers import NamedServer, counted_twice
from synergon.stores.sqlite import SqliteStore

MIN_DISK_BYTES: Final = 256 * 1024 * 1024
MAX_CLOCK_OFFSET_SECONDS: Final = 1.0
PAGE_TASKS: Final = 1000
SCANNED_TASKS: Final = 20_000
"""How many tasks are checked for values that cannot be read, the newest first."""
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs"})


class Finding(Record, frozen=True, kw_only=True):
    """A problem, and what to do about it."""

    problem: str
    advice: str


class SettingInForce(Record, frozen=True, kw_only=True):
    """The value of a setting, and its source."""

    value: Any
    source: str


class KindFacts(Record, frozen=True, kw_only=True):
    """A registered kind."""

    kind: str
    queue: str
    runs_in: str
    attempts: int
    timeout: float | None
    """The timeout in seconds. None means no timeout."""
    function: str


class Diagnosis(Record, frozen=True, kw_only=True):
    """The result of all checks. The field names are those of `doctor --json`."""

    is_healthy: bool
    problems: tuple[Finding, ...]
    versions: dict[str, str]
    app: str | None
    url: str
    chosen_by: str
    schema_version: int | None = None
    schema_version_wanted: int | None = None
    store: dict[str, str] = msgspec.field(default_factory=dict)
    clock_ahead_seconds: float | None = None
    """By how many seconds the store's clock is ahead of the host's."""
    disk_free_bytes: int | None = None
    settings: dict[str, SettingInForce]
    kinds: tuple[KindFacts, ...] | None = None
    """The registered kinds. None if no app was given."""
    nodes: tuple[NodeRecord, ...] = ()


async def diagnose(engine: Engine, *, app: str | None, chosen_by: str, described: Engine | None = None) -> Diagnosis:
    """Run all checks. A check that fails is reported as a problem. `app` is the application whose code is imported, and
    `chosen_by` says where the URL of the database comes from. The settings and kinds are those of `described`, if it is
    given."""
    described = engine if described is None else described
    store = open_store(engine.settings.url)
    facts: dict[str, Any] = {}
    problems = [*_unknown_variables(), *_private(store), *disk_problems(store, facts)]
    try:
        problems += _schema_problems(store, await store.schema_versions(), facts)
        if facts.get("schema_version") == facts.get("schema_version_wanted"):
            problems += await _check_contents(engine, facts)
    except StoreError as error:
        problems.append(Finding(problem=str(error), advice="nothing works without the database; fix this first"))
    return Diagnosis(
        is_healthy=not problems,
        problems=tuple(problems),
        versions=_versions(),
        app=app,
        url=shown(described.settings.url),
        chosen_by=chosen_by,
        settings=_settings(described),
        kinds=tuple(_kinds(described)) if app is not None else None,
        **facts,
    )


# ---------------------------------------------------------------- facts


def _versions() -> dict[str, str]:
    found = {"synergon": version("synergon"), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in ("asyncpg", "uvloop", "watchfiles"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _settings(engine: Engine) -> dict[str, SettingInForce]:
    values = engine.settings
    return {
        name: SettingInForce(value=_plain(name, getattr(values, name)), source=source)
        for name, source in values.sources.items()
    }


def _plain(name: str, value: Any) -> Any:
    if name == "url":
        return shown(value)
    if isinstance(value, Resources):
        usual = {"cpu": value.cpu, "ram": value.ram, "gpu": value.gpu}
        return {name: amount for name, amount in {**usual, **value.custom}.items() if amount is not None}
    return sorted(value) if isinstance(value, frozenset) else value


def _kinds(engine: Engine) -> Iterator[KindFacts]:
    timeouts = Timeouts(engine.settings.timeout, engine.timeout_for, logging.LoggerAdapter(engine.logger))
    for kind, task_type in sorted(engine.kinds.items()):
        policy = task_type.policy
        timeout = timeouts.of_kind(task_type)
        yield KindFacts(
            kind=kind,
            queue=policy.queue,
            runs_in=policy.runs_in,
            attempts=policy.retry.attempts,
            timeout=timeout,
            function=".".join(task_type.location),
        )


# ---------------------------------------------------------------- problems


def _unknown_variables() -> Iterator[Finding]:
    for problem, advice in unknown_variables():
        yield Finding(problem=problem, advice=advice)


def _private(store: Store) -> Iterator[Finding]:
    if not store.capabilities.shared:
        yield Finding(
            problem=f"{store.url} exists in one process only and is lost when that ends",
            advice="use sqlite:///app.db for durable tasks; `synergon worker` does not accept memory://",
        )


def _schema_problems(store: Store, versions: SchemaVersions | None, facts: dict[str, Any]) -> Iterator[Finding]:
    if versions is None:
        return
    found, wanted = versions.found, versions.wanted
    facts.update(schema_version=found, schema_version_wanted=wanted)
    if found is None:
        yield Finding(
            problem=f"there is no {_noun(store)} at {shown(store.url)}", advice="`synergon migrate` creates it"
        )
    elif found == 0:
        yield Finding(
            problem=f"the {_noun(store)} at {shown(store.url)} has no tables of synergon",
            advice="`synergon migrate` creates them beside the existing ones",
        )
    elif found < wanted:
        yield Finding(
            problem=f"the schema has version {found}, this code needs {wanted}",
            advice="run `synergon migrate`, or start a worker, which migrates too",
        )
    elif found > wanted:
        yield Finding(
            problem=f"the schema has version {found}, this code knows only {wanted}", advice="upgrade synergon"
        )


def _noun(store: Store) -> str:
    return "database" if isinstance(store, SqliteStore) else "schema of synergon"


def disk_problems(store: Store, facts: dict[str, Any]) -> Iterator[Finding]:
    """Problems with the folder and disk of a SQLite file. Adds the free space to `facts`."""
    if not isinstance(store, SqliteStore) or not store.path.absolute().parent.is_dir():
        return
    folder = store.path.absolute().parent
    free = shutil.disk_usage(folder).free
    facts["disk_free_bytes"] = free
    if free < MIN_DISK_BYTES:
        yield Finding(
            problem=f"only {free // 1024**2} MiB are free in {folder}",
            advice="free some space: when the disk is full, no task can be stored or finished",
        )
    for path in (folder, store.path):
        if path.exists() and not os.access(path, os.W_OK):
            yield Finding(
                problem=f"{path} cannot be written, so no task can be stored or finished",
                advice="give this user write access to the file and its folder, on a disk that is not read-only",
            )
    yield from _readable_files(store.path)
    file_system = _file_system(folder)
    if file_system in NETWORK_FILE_SYSTEMS:
        yield Finding(
            problem=f"{folder} is on a network file system ({file_system}), where SQLite is unreliable",
            advice="move the database to a local disk",
        )


def _readable_files(path: Path) -> Iterator[Finding]:
    """Problems with files of a SQLite database that every user of the host can read or write."""
    if os.name != "posix":  # elsewhere the mode says nothing about other users
        return
    for file in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm", "ids"))):
        if file.exists() and file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            yield Finding(
                problem=f"every user of this host can access {file}, with arguments, results and the secret",
                advice=f"chmod o-rwx {shlex.quote(str(file))}",
            )


def _file_system(folder: Path) -> str | None:
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[path] for path in (folder, *folder.parents) if path in mounts), None)


async def _check_contents(engine: Engine, facts: dict[str, Any]) -> list[Finding]:
    async with engine:
        store = engine._store
        facts["store"] = {**await store.describe(), **await _retention(store)}
        ahead = await clock_ahead(store)
        facts["clock_ahead_seconds"] = round(ahead, 3)
        nodes = await engine.nodes()
        facts["nodes"] = tuple(map(_without_password, nodes))
        counts = await store.counts()
        queues = await store.queues()
        shortages = [*await find_shortages(engine, counts), *await find_misfits(engine, counts)]
        unreadable = await _unreadable_values(store)
        servers, limits = await store.servers(), await store.limits()
        status = await engine.status()
    return [
        *_unsafe_settings(facts["store"]),
        *_clock_problems(ahead),
        *_dead_nodes(nodes),
        *_troubles(status),
        *_unclaimable_tasks(counts, nodes, queues),
        *(Finding(problem=problem, advice=advice) for problem, advice in shortages),
        *_shared_servers(servers, limits),
        *unreadable,
    ]


async def _retention(store: Store) -> dict[str, str]:
    """The retention that holds for all workers, if it is stored."""
    stored = await store.retention()
    return {} if stored is None else {"retention": describe_retention(stored)}


async def _unreadable_values(store: Store) -> list[Finding]:
    """The values that cannot be read in the newest tasks and in the other tables."""
    after: str | None = None
    for _ in range(SCANNED_TASKS // PAGE_TASKS):
        page = await store.list_tasks(TaskQuery(after=after, limit=PAGE_TASKS))
        await store.groups(sorted({task.group_id for task in page if task.group_id is not None}))
        after = page.next
        if after is None:
            break
    await store.audit(PAGE_TASKS)
    await store.limits()
    await store.servers()
    await store.schedules()
    return [
        Finding(
            problem=str(value),
            advice="another program or a newer release wrote it; correct it with SQL, or delete the row",
        )
        for value in store.unreadable
    ]


def _shared_servers(servers: Iterable[ServerRecord], limits: Iterable[LimitRecord]) -> Iterator[Finding]:
    """Problems with servers that several providers name. Providers of different programs cannot notice this
    themselves."""
    named = [NamedServer(found.provider, found.address, found.capacity) for found in servers if not found.is_removed]
    for twice in counted_twice(named, [limit.name for limit in limits]):
        yield Finding(problem=twice.problem, advice=twice.advice)


def _without_password(node: NodeRecord) -> NodeRecord:
    return msgspec.structs.replace(node, address=shown(node.address)) if node.address is not None else node


def _unsafe_settings(store: dict[str, str]) -> Iterator[Finding]:
    if store.get("fsync") == "off":
        yield Finding(
            problem="the server runs with fsync = off: if its host crashes, the whole database may be lost",
            advice="set fsync = on (ALTER SYSTEM RESET fsync, then reload)",
        )
    if store.get("synchronous_commit") == "off":
        yield Finding(
            problem="synchronous_commit is off: the last commits are lost if the server crashes",
            advice="set it to on for the role or the database (ALTER ROLE ... SET synchronous_commit = on)",
        )


async def clock_ahead(store: Store) -> float:
    """By how many seconds the store's clock is certainly ahead of the host's; negative if it is behind. The answer may
    have been made at any time between the request and its arrival, so the smallest possible difference is returned."""
    asked_at = time.time()
    now = await store.now() / 1_000_000
    return max(now - time.time(), 0.0) + min(now - asked_at, 0.0)


def _clock_problems(ahead: float) -> Iterator[Finding]:
    if abs(ahead) > MAX_CLOCK_OFFSET_SECONDS:
        yield Finding(
            problem=f"the store's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the host's",
            advice="set the host's clock (NTP); until both agree, due tasks start early or late",
        )


def _dead_nodes(nodes: Sequence[NodeRecord]) -> Iterator[Finding]:
    for node in nodes:
        if not is_alive(node):
            yield Finding(
                problem=f"node {node.name} ({node.id}) is dead or has not renewed its lease",
                advice="a live worker takes its tasks back; if there is none, start one",
            )


def _troubles(status: ClusterStatus) -> Iterator[Finding]:
    """Problems with silent workers, overdue tasks, and failures of the last hour."""
    for worker in status.workers:
        if worker.is_alive and worker.silent_seconds > worker.lease_seconds / 2:
            yield Finding(
                problem=f"worker {worker.name} on {worker.host} ({worker.id}) has not renewed its lease for "
                f"{worker.silent_seconds:.0f} s; after {worker.lease_seconds:g} s others take its tasks",
                advice="look at its log and at the load of its host",
            )
    if status.overdue:
        yield Finding(
            problem=f"running tasks that have exceeded their timeout and do not end: {status.overdue}",
            advice="`synergon tasks list --state running` shows them; a thread can be ended only with its worker",
        )
    for kind, number in status.failures_last_hour.items():
        yield Finding(
            problem=f"tasks of kind {kind!r} that failed in the last hour: {number}",
            advice=f"`synergon tasks list --state failed --kind {shlex.quote(kind)}` shows their errors",
        )


def _unclaimable_tasks(
    counts: dict[tuple[str, str, State], int], nodes: Sequence[NodeRecord], queues: Sequence[QueueRecord]
) -> Iterator[Finding]:
    """Ready tasks that no live node would claim."""
    names = {queue.name for queue in queues}
    paused = {queue.name for queue in queues if queue.is_paused}
    live = [node for node in nodes if is_alive(node)]
    for (queue, kind, state), number in sorted(counts.items()):
        if state is not State.READY:
            continue
        ready = f"ready tasks of kind {kind!r} in queue {queue!r}: {number}"
        if queue not in names:
            advice = f"`synergon queues pause {queue}` and `synergon queues resume {queue}` register it"
            yield Finding(problem=f"{ready}; the queue is not registered", advice=advice)
            continue
        if queue in paused:
            yield Finding(problem=f"{ready}; the queue is paused", advice=f"`synergon queues resume {queue}`")
            continue
        runners = [node for node in live if kind in node.kinds and (node.queues is None or queue in node.queues)]
        if not runners:
            yield Finding(problem=f"{ready}; no live node runs them", advice="start a worker that has the kind")
        elif all(node.is_cordoned for node in runners):
            yield Finding(
                problem=f"{ready}; every node that runs them is cordoned",
                advice=f"`synergon nodes uncordon {runners[0].id}`, or start another worker",
            )
