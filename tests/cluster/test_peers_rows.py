"""A node is its row, and a row is an id: what happens to a process whose row is deleted, and to its namesake."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.cluster.peers_support import joined, node, url_fixture  # noqa: F401
from tests.support import SOON, Pace, until

from synergon import Engine, Handle, NodeRecord

LEASE_SECONDS: Final = 9.0


@contextmanager
def twin(url: str, folder: Path, concurrency: int = 1) -> Iterator[None]:
    """A process that has its name from another one."""
    settings = {
        "SYNERGON_NAME": "twin",
        "SYNERGON_CONCURRENCY": str(concurrency),
        "SYNERGON_LEASE": str(LEASE_SECONDS),
        "PEERS_MARKS": str(folder),
    }
    with node(url, "stay", settings=settings):
        yield


async def begun(folder: Path, handle: Handle[Any], claim_no: int = 1) -> int:
    """The process in which this claim of the task runs, once it does."""
    path = folder / f"{handle.id}-{claim_no}"
    await until(lambda: path.exists() and bool(path.read_text()), patience_seconds=30)
    return int(path.read_text())


async def nodes_by_pid(producer: Engine) -> dict[int, NodeRecord]:
    """The nodes that there are."""
    return {record.process.pid: record for record in await producer.nodes()}


async def is_back(producer: Engine, pid: int, before: Mapping[int, NodeRecord]) -> bool:
    """Whether the process is a node again, and another one than before."""
    found = (await nodes_by_pid(producer)).get(pid)
    return found is not None and found.id != before[pid].id


async def test_a_node_whose_row_is_deleted_joins_again_and_its_namesake_is_left_alone(url: str, tmp_path: Path) -> None:
    async with Engine(url, sweep=0.2) as producer:
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(twin(url, tmp_path))
            await joined(producer, 2)
            handles = await producer.enqueue([producer.call("stay"), producer.call("stay")])
            bereft, lucky = [await begun(tmp_path, handle) for handle in handles]
            before = await nodes_by_pid(producer)
            assert sorted(before) == sorted((bereft, lucky)), "each twin has one task"

            with Pace() as pace:
                deleted_at = time.monotonic()
                await producer._store.unregister(before[bereft].id)
                await until(lambda: is_back(producer, bereft, before), patience_seconds=30)
                took = time.monotonic() - deleted_at
            assert tuple(await handles[0].result(timeout=30)) == (2, bereft), "it works on"
            after = await nodes_by_pid(producer)
            assert (await handles[0].status()).node_id == after[bereft].id

            (tmp_path / "go").touch()
            assert tuple(await handles[1].result(timeout=30)) == (1, lucky)
            assert after[lucky].id == before[lucky].id
    print(f"\n{url.split(':')[0]}: back after {took:.2f} s")
    assert {record.name for record in before.values()} == {"twin"}
    assert took < LEASE_SECONDS / 2 + pace.seconds(SOON), "a beat is a sixth"


async def test_the_outcome_of_a_fenced_attempt_is_ignored_after_the_next_has_started(
    postgres_url: str, tmp_path: Path
) -> None:
    async with Engine(postgres_url, sweep=0.2) as producer:
        with twin(postgres_url, tmp_path):
            await joined(producer, 1)
            (handle,) = await producer.enqueue([producer.call("stay", is_stubborn=True)])
            bereft = await begun(tmp_path, handle)
            with twin(postgres_url, tmp_path, concurrency=2):
                await joined(producer, 2)
                before = await nodes_by_pid(producer)
                await producer._store.unregister(before[bereft].id)
                heir = await begun(tmp_path, handle, claim_no=2)
                assert heir != bereft
                assert tuple(await handle.result(timeout=30)) == (2, heir)
                await until(lambda: is_back(producer, bereft, before), patience_seconds=30)
                record = await handle.status()
                assert (record.claim_no, tuple(record.result)) == (2, (2, heir))
