"""A shop with tasks in every state, for the tests of the dashboard in a browser and for its pictures."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support import PATIENCE_SECONDS, until

from synergon import Context, Engine, Health, Retry, Server, State
from synergon.model.task_statistics import BOUNDS, ErrorCount, Histogram, KindNumbers, Numbers

HOSTILE = "<script>document.title='pwned'</script>\u202e\x1b[31m</pre><img src=x onerror=alert(1)>"
"""A text that must be shown as it is."""


def make_shop(url: str) -> Engine:
    """The engine of the shop, with kinds, limits, schedules and a provider."""
    engine = Engine(url, name="shop", sweep=0.5)
    models = engine.provider("models", servers={"http://gpu-1:8000": 4, "http://gpu-2:8000": 2, "http://gpu-3:8000": 0})
    maps = engine.provider(
        "maps", servers=["https://maps.example.com"], health=Health(failures=2, backoff="1h", cap="1h")
    )
    engine.limit("payments", 8)

    @engine.task(title="Receipt for order {order}", queue="mail")
    async def send_receipt(order: int, address: str, api_key: str = "") -> dict[str, Any]:
        return {"order": order, "message_id": f"<{order}@shop.example.com>"}

    @engine.task(title="Photo {photo} in {width} px", queue="media")
    async def resize_photo(photo: str, width: int) -> str:
        return f"photos/{width}/{photo}"

    @engine.task(title="Charge order {order}", retry=Retry(attempts=3, first=0.05), limits=["payments"])
    async def charge_card(order: int, amount: float) -> None:
        raise ConnectionError(f"payment gateway answered 502 for order {order}")

    @engine.task(title="{note}", retry=Retry(attempts=1))
    async def check_note(note: str) -> None:
        raise ValueError(note)

    @engine.task(title="Import {file}", queue="imports")
    async def import_orders(ctx: Context, file: str, rows: int) -> None:
        for row in range(10**9):
            ctx.progress(min(0.62 + row / 5000, 0.99), f"{6200 + row * 2} of {rows} rows")
            await asyncio.sleep(0.5)

    @models.task(title="Describe {product}", queue="media")
    async def describe_product(product: str, server: Server) -> None:
        await asyncio.sleep(3600)

    @maps.task(title="Locate {address}", retry=Retry(attempts=1))
    async def locate_address(address: str, server: Server) -> None:
        raise TimeoutError(f"{server.address} did not answer within 5 s")

    @engine.task(queue="reports")
    async def fetch_sales(region: str) -> list[int]:
        return list(range(12))

    @engine.task(queue="reports")
    async def merge_sales(north: list[int], south: list[int]) -> list[int]:
        return north + south

    @engine.task(queue="reports", retry=Retry(attempts=1))
    async def render_page(day: int) -> str:
        if day == 7:
            raise LookupError("no sales on day 7")
        return f"page {day}"

    @engine.task(queue="reports", title="Publish the report")
    async def publish_report(pages: list[str]) -> int:
        return len(pages)

    @engine.task(title="Order {order} of {customer}", queue="imports")
    async def accept_order(ctx: Context, order: int, customer: str) -> None:
        ctx.enqueue(engine.kinds["resize_photo"].call(f"{order}.png", 320))
        ctx.enqueue(engine.kinds["check_note"].call(f"note of {customer}"))

    engine.schedule("nightly report", fetch_sales.call("all"), cron="0 3 * * *", tz="Europe/Berlin")
    engine.schedule("sync stock", resize_photo.call("stock.png", 64), every="15m")
    return engine


async def fill(engine: Engine, *, many: int = 12) -> dict[str, int]:
    """Enqueue tasks that come to every state. Returns the ids of some of them. Needs a worker."""
    kinds = engine.kinds
    receipts = kinds["send_receipt"].with_options(tags=["order"], meta={"customer": "acme"})
    for order in range(4711, 4711 + many):
        await receipts.enqueue(order, f"customer{order}@example.com", api_key="sk-live-0815")
        await kinds["resize_photo"].enqueue(f"{order}.jpg", 640)
    ids = {"charge": (await kinds["charge_card"].enqueue(4712, 19.9)).id}
    await kinds["charge_card"].enqueue(4719, 240.0)
    ids["parent"] = (await kinds["accept_order"].enqueue(4720, HOSTILE)).id
    ids["note"] = (await kinds["check_note"].with_options(tags=["<b>vip</b>"], meta={"x": HOSTILE}).enqueue(HOSTILE)).id
    ids["import"] = (await kinds["import_orders"].enqueue("orders-2026-11.csv", 10000)).id
    await kinds["locate_address"].enqueue_many([("Hauptstr. 1",), ("Hauptstr. 2",), ("Hauptstr. 3",)])
    for product in ("lamp", "chair", "table", "shelf", "sofa", "rug", "clock", "vase"):
        await kinds["describe_product"].enqueue(product)
    flow = engine.flow("monthly report")
    north, south = (flow.add(kinds["fetch_sales"].call(region)) for region in ("north", "south"))
    pages = flow.map(kinds["render_page"], over=flow.add(kinds["merge_sales"].call(north.result, south.result)))
    flow.add(kinds["publish_report"].call(pages.results))
    run = await flow.enqueue()
    ids["flow"] = run.id
    await until(lambda: _all_ended(engine, run.id))
    await engine.pause("mail")
    ids["paused"] = (await receipts.enqueue(4800, "late@example.com")).id
    ids["scheduled"] = (await receipts.with_options(delay="2h").enqueue(4801, "tomorrow@example.com")).id
    waits = await receipts.with_options(after=[ids["import"]]).enqueue(4802, "after@example.com")
    cancelled = await receipts.enqueue(4803, "never@example.com")
    await engine.cancel(cancelled.id, why="the customer has changed the order")
    ids |= {"waiting": waits.id, "cancelled": cancelled.id}
    counts = await engine.counts()
    assert all(counts[state] for state in State), counts
    return ids


async def _all_ended(engine: Engine, flow_id: int) -> bool:
    flow = await (await engine.flows.get(flow_id)).status()
    counts = await engine.counts()
    return flow.state is not None and counts[State.FAILED] >= 8 and counts[State.RUNNING] >= 4


@asynccontextmanager
async def open_shop(url: str, *, many: int = 12) -> AsyncIterator[tuple[Engine, dict[str, int]]]:
    """The shop with a worker, filled."""
    engine = make_shop(url)
    async with engine.worker(concurrency=24):
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                ids = await fill(engine, many=many)
            yield engine, ids
        finally:  # some of its tasks never end
            await engine.stop(grace=0)


async def add_history(engine: Engine) -> None:
    """A schedule of run time with occurrences that succeeded, failed and were skipped. Needs a worker."""
    name, call = "sync partners", engine.kinds["render_page"].call(1)
    await engine.schedules.create(name, call, every="100ms", overlap="queue")
    await until(lambda: _has_past(engine, name, fired=8))
    await engine.schedules.update(name, engine.kinds["render_page"].call(7))
    await until(lambda: _has_past(engine, name, fired=9))
    await engine.schedules.update(name, call)
    await until(lambda: _has_past(engine, name, fired=12))
    await engine.schedules.pause(name)
    await until(lambda: _has_past(engine, name, skipped=3))
    await engine.schedules.resume(name)
    await until(lambda: _has_past(engine, name, fired=15))
    await engine.schedules.update(name, every="15m")


async def _has_past(engine: Engine, name: str, fired: int = 0, skipped: int = 0) -> bool:
    schedule = await engine.schedules.get(name)
    return schedule.times_fired >= fired and schedule.times_skipped >= skipped


async def write_past(engine: Engine) -> None:
    """Statistics of the last hour, as workers would have written them. For pictures."""
    now = await engine._store.now()
    for minute in range(60):
        at = now - now % 60_000_000 - (59 - minute) * 60_000_000
        wave = 60 + round(38 * math.sin(minute / 7)) + (minute * 37) % 11
        lost = 9 if 41 <= minute <= 44 else int(minute % 17 == 3)
        done = [
            ("send_receipt", "mail", wave, 0),
            ("resize_photo", "media", wave // 2, 0),
            ("charge_card", "default", 12, lost),
        ]
        counted = [
            KindNumbers(kind=kind, queue=queue, numbers=_numbers(kind, succeeded, failed))
            for kind, queue, succeeded, failed in done
        ]
        counted += [
            KindNumbers(kind=kind, queue=queue, numbers=Numbers(depth=depth))
            for kind, queue, depth in (
                ("render_page", "reports", max(wave - 40, 0) * 3),
                ("locate_address", "maps", lost * 4),
            )
            if depth
        ]
        await engine._store.append_statistics("worker of the past", at, counted)


def _numbers(kind: str, succeeded: int, failed: int) -> Numbers:
    times = [0] * (len(BOUNDS) + 1)
    times[4], times[5], times[6] = succeeded // 2, succeeded - succeeded // 2, failed
    error = ErrorCount(type="ConnectionError", message="payment gateway answered # for order #", count=failed)
    return Numbers(
        accepted=succeeded + failed,
        started=succeeded + failed,
        ended={"succeeded": succeeded, "exhausted": failed} if failed else {"succeeded": succeeded},
        wait=Histogram(counts=(*times[2:], 0, 0), seconds=succeeded * 0.01),
        run=Histogram(counts=tuple(times), seconds=succeeded * 0.04),
        errors={kind: error} if failed else {},
    )
