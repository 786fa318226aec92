"""Flows, schedules, nodes, providers and limits in a real browser, and a database that really goes away."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from tests.postgres_server import SCHEMA, server_url, store_url
from tests.support import Gate, until
from tests.web.browser import open_browser, served
from tests.web.sample import add_history, open_shop
from tests.web.test_browser_pages import Desk

from synergon import Engine
from synergon.web.access import Role, User, everybody
from synergon.web.dashboard.app import make_dashboard

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN = everybody(User("ada", Role.ADMIN))
SLOW_MS = 30_000
"""A page asks again within 15 seconds after failures."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    folder: Path = tmp_path_factory.mktemp("shop")
    async with open_shop(f"sqlite:///{folder}/tasks.db", many=2) as (engine, ids):
        await add_history(engine)
        async with served(make_dashboard(engine, auth=ADMIN), ADMIN) as address:
            yield Desk(browser, engine, ids, address)


@pytest.fixture(autouse=True)
def _quiet(desk: Desk) -> None:
    desk.complaints.clear()


async def say_yes(page: Page, name: str) -> None:
    await page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()


# ---------------------------------------------------------------- schedules


async def test_a_strip_shows_what_became_of_the_latest_occurrences(desk: Desk) -> None:
    page = await desk.open("/schedules")
    strip = page.get_by_role("group", name=re.compile("Latest occurrences: .*succeeded")).first
    await expect(strip.locator(".mark.succeeded").first).to_be_visible()
    await expect(strip.locator(".mark.failed").first).to_be_visible()
    await expect(strip.locator(".mark.skipped").first).to_have_attribute("title", re.compile("the schedule is paused"))
    await strip.locator("a.mark.failed").first.click()
    await expect(page.locator("#head .state")).to_have_text("failed")
    assert desk.complaints == []
    await page.close()


async def test_a_schedule_that_was_made_at_run_time_is_changed(desk: Desk) -> None:
    name = "stock of <b>shop</b>"
    await desk.engine.schedules.create(name, desk.engine.kinds["resize_photo"].call("7.jpg", 64), cron="0 3 * * *")
    page = await desk.open("/schedules")
    row = page.locator("tr[data-row]", has_text=name)
    await expect(row.locator("code")).to_have_text("0 3 * * *")
    await row.get_by_role("button", name="Change…").click()
    dialog = page.get_by_role("dialog", name=f"Change {name}")
    await expect(dialog.get_by_label("Interval", exact=True)).to_be_hidden()
    await dialog.get_by_label("Cron expression", exact=True).fill("99 <i>* * *")
    await dialog.get_by_role("button", name="Change").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("99 <i>* * *")
    await dialog.get_by_label("Fires").select_option("every")
    await dialog.get_by_label("Interval", exact=True).fill("2h")
    await dialog.get_by_label("While the task before has not ended").select_option("queue")
    await dialog.get_by_role("button", name="Change").click()
    await expect(dialog).to_be_hidden()
    await expect(page.get_by_role("status")).to_have_text("The schedule is changed.")
    await expect(row.locator("code")).to_have_text("every 2 h")
    changed = await desk.engine.schedules.get(name)
    assert (changed.overlap, changed.missed, changed.cron) == ("queue", "one", None)
    (entry, *_) = await desk.engine.audit()
    assert (entry.verb, entry.subject) == ("update_schedule", name)
    assert entry.who.startswith("ada@")
    await row.get_by_role("button", name="Delete…").click()
    await say_yes(page, "Delete")
    await expect(row).to_have_count(0)
    declared = page.locator("tr[data-key='nightly report']")
    await expect(declared.get_by_role("button", name="Pause")).to_be_visible()
    await expect(declared.get_by_role("button", name="Change…")).to_have_count(0)
    # The browser writes a line about each answer of 400.
    assert [one for one in desk.complaints if "status of 400" not in one] == []
    await page.close()


async def test_a_schedule_is_paused_resumed_and_run_now(desk: Desk) -> None:
    page = await desk.open("/schedules")
    row = page.locator("tr[data-key='sync stock']")
    await row.get_by_role("button", name="Pause").click()
    await say_yes(page, "Pause")
    await expect(row.get_by_text("paused", exact=True)).to_be_visible()
    await row.get_by_role("button", name="Resume").click()
    await expect(row.get_by_text("paused", exact=True)).to_be_hidden()
    await row.get_by_role("button", name="Run now").click()
    await say_yes(page, "Run now")
    await expect(row.locator(".mark.succeeded")).to_have_attribute("title", re.compile("an operator has run it"))
    assert desk.complaints == []
    await page.close()


# ---------------------------------------------------------------- providers and limits


async def test_servers_are_added_closed_opened_and_removed(desk: Desk) -> None:
    page = await desk.open("/providers")
    provider = page.get_by_role("region", name="Provider models")
    await provider.get_by_role("button", name="Add a server…").click()
    dialog = page.get_by_role("dialog", name="Add a server to models")
    await dialog.get_by_label("Address").fill("http://<b>gpu</b>")
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("<b>gpu</b>")
    await dialog.get_by_label("Address").fill("http://gpu-4:8000")
    await dialog.get_by_label("Capacity").fill("3")
    await dialog.get_by_role("button", name="Add").click()
    server = provider.locator("li[data-key='http://gpu-4:8000']")
    await expect(server).to_contain_text("/ 3")
    await server.get_by_role("button", name="Close").click()
    await say_yes(page, "Close")
    await expect(server.get_by_text("closed", exact=True)).to_be_visible()
    await server.get_by_role("button", name="Open…").click()
    await page.get_by_role("dialog").get_by_label("How many tasks at once").fill("5")
    await say_yes(page, "Change")
    await expect(server).to_contain_text("/ 5")
    await server.get_by_role("button", name="Remove…").click()
    await say_yes(page, "Remove")
    await expect(server.get_by_text("removed", exact=True)).to_be_visible()  # its tasks finish there
    await expect(server.get_by_role("button")).to_have_count(0)
    verbs = [entry.verb for entry in await desk.engine.audit(10) if entry.subject == "models" and not entry.is_rejected]
    assert verbs == ["remove_server", "add_server", "close_server", "add_server"]
    assert [one for one in desk.complaints if "status of 4" not in one] == []
    await page.close()


async def test_a_limit_gets_another_value_and_a_rate(desk: Desk) -> None:
    page = await desk.open("/providers")
    row = page.locator("tr[data-key='payments']")
    await row.get_by_role("button", name="Change…").click()
    dialog = page.get_by_role("dialog", name="Change the limit payments")
    await dialog.get_by_label("At most").fill("12")
    await say_yes(page, "Change")
    await expect(row).to_contain_text("/ 12")
    await row.get_by_role("button", name="Change…").click()
    await dialog.get_by_label("Starts").fill("30")
    await dialog.get_by_label("Per").fill("1m")
    await dialog.get_by_label("Burst").fill("2")
    await say_yes(page, "Change")
    await expect(row).to_contain_text("30 per 60 s")
    await expect(row).to_contain_text("/ 12")
    await row.get_by_role("button", name="Change…").click()
    for field in ("Starts", "Per", "Burst"):
        await dialog.get_by_label(field).fill("")
    await say_yes(page, "Change")
    await expect(row).not_to_contain_text("per 60 s")
    (limit,) = [one for one in await desk.engine.limits() if one.name == "payments"]
    assert (limit.value, limit.rate) == (12, None)
    assert desk.complaints == []
    await page.close()


# ---------------------------------------------------------------- nodes


async def test_a_node_shows_its_tasks_is_cordoned_and_says_how_fast_peers_answer(desk: Desk) -> None:
    page = await desk.open("/nodes")
    (node,) = await desk.engine.nodes()
    card = page.locator(f"li[data-key='{node.id}']")
    await expect(card.get_by_role("list", name="Running tasks").get_by_role("listitem")).to_have_count(5)
    await expect(card.get_by_text(re.compile("and .* more; in all .*describe_product × "))).to_be_visible()
    async with Engine(desk.engine.settings.url, name="beside", sweep=60) as other:
        other.task(name="somewhere")(_nothing)
        async with other.worker():
            await until(lambda: _knows_peers(desk.engine))
            await desk.engine.enqueue([desk.engine.call("somewhere")])
            await expect(card.get_by_text(re.compile(r"\d ms · 95 % within"))).to_be_visible(timeout=SLOW_MS)
    await card.get_by_role("button", name="Drain…").click()
    await say_yes(page, "Back")
    await card.get_by_role("button", name="Cordon").click()
    await say_yes(page, "Cordon")
    await expect(card.get_by_text("cordoned", exact=True)).to_be_visible()
    await card.get_by_role("button", name="Uncordon").click()
    await expect(card.get_by_text("alive", exact=True)).to_be_visible(timeout=SLOW_MS)
    assert desk.complaints == []
    await page.close()


async def _nothing() -> None: ...


async def _knows_peers(engine: Engine) -> bool:
    return sum(node.concurrency > 0 for node in await engine.nodes()) == 2


# ---------------------------------------------------------------- flows


async def test_the_view_of_a_graph_follows_what_runs_until_it_is_moved(browser: Browser, tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/flow.db", sweep=0.5)
    gates = [Gate(), Gate()]

    @engine.task
    async def step(number: int) -> int:
        if number >= 6:
            await gates[number - 6].hold()
        return number

    flow = engine.flow("long")
    last = flow.add(step.call(0))
    for number in range(1, 8):
        last = flow.add(step.call(number).with_options(after=[last]))
    async with engine.worker(), served(make_dashboard(engine, auth=ADMIN), ADMIN) as address:
        run = await flow.enqueue()
        await gates[0].until_reached()
        desk = Desk(browser, engine, {}, address)
        page = await desk.open(f"/flows/{run.id}", viewport={"width": 900, "height": 700})
        graph = page.locator("#graph")
        left = await _left(page)
        assert left > 0, "the first steps are out of view"
        await expect(page.locator(".box.state-running")).to_be_in_viewport()
        gates[0].open()
        await gates[1].until_reached()
        await expect(graph).not_to_have_attribute("viewBox", re.compile(rf"^{left:g} "))
        assert await _left(page) > left
        await page.get_by_role("button", name="Fit").click()
        await expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")
        assert await _left(page) == 0
        await page.get_by_role("button", name="Cancel…").click()
        await say_yes(page, "Cancel")
        await expect(page.locator("#head .state")).to_have_text("cancelled")
        await expect(page.get_by_role("button", name="Follow")).to_have_count(0)
        assert desk.complaints == []
        await page.close()


async def _left(page: Page) -> float:
    return float((await page.locator("#graph").get_attribute("viewBox") or "").split()[0])


async def test_a_folded_map_is_unfolded_and_a_failed_flow_is_retried(desk: Desk) -> None:
    page = await desk.open(f"/flows/{desk.ids['flow']}")
    await expect(page.locator("#graph .box.folded")).to_have_count(1)
    await page.locator("#graph a", has=page.locator(".folded")).click()
    await expect(page.locator("#graph .box.folded")).to_have_count(0)
    await expect(page.locator("#graph .box", has_text="render_page")).to_have_count(25)  # with the map itself
    await page.get_by_role("link", name="Fold", exact=True).click()
    await expect(page.locator("#graph .box.folded")).to_have_count(1)
    kind = desk.engine.kinds["render_page"]
    original = kind.function

    async def mended(day: int) -> str:
        return f"page {day}"

    kind.function = mended
    try:
        await page.get_by_role("button", name="Retry").click()
        await say_yes(page, "Retry")
        await expect(page.locator("#head .state")).to_have_text("succeeded")
    finally:
        kind.function = original
    assert desk.complaints == []
    await page.close()


# ---------------------------------------------------------------- a database that goes away


@asynccontextmanager
async def line_to_the_server(is_cut: asyncio.Event) -> AsyncIterator[str]:
    """The URL of the PostgreSQL server by way of a line that ends every connection while it is cut."""
    address = f"{parse_qs(urlsplit(server_url()).query)['host'][0]}/.s.PGSQL.5432"
    writers: set[asyncio.StreamWriter] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_cut.is_set():
            writer.close()
            return
        inner_reader, inner_writer = await asyncio.open_unix_connection(address)
        writers.update((writer, inner_writer))
        await asyncio.gather(carry(inner_reader, writer), carry(reader, inner_writer))

    async def cut() -> None:
        await is_cut.wait()
        for writer in writers:
            writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    cutter = asyncio.create_task(cut())
    try:
        yield f"postgresql://postgres:@127.0.0.1:{server.sockets[0].getsockname()[1]}/postgres?schema={SCHEMA}"
    finally:
        cutter.cancel()
        server.close()
        for writer in writers:
            writer.close()


@pytest.mark.skipif("host" not in parse_qs(urlsplit(server_url()).query), reason="needs the server of the tests")
async def test_a_page_says_that_the_database_is_away_and_heals_by_itself(browser: Browser) -> None:
    store_url()
    is_cut = asyncio.Event()
    async with line_to_the_server(is_cut) as url:
        engine = Engine(url, lease=60)
        engine.limit("payments", 8)
        async with engine.worker(), served(make_dashboard(engine, auth=ADMIN), ADMIN) as address:
            desk = Desk(browser, engine, {}, address)
            page = await desk.open("/providers")
            await page.evaluate("window.isTheSame = true")
            await expect(page.locator("tr[data-key='payments']")).to_contain_text("/ 8")
            is_cut.set()
            alert = page.locator("#banner")
            await expect(alert).to_contain_text("The database is unavailable", timeout=SLOW_MS)
            await expect(alert).to_contain_text("Trying again")
            await expect(page.locator("tr[data-key='payments']")).to_contain_text("/ 8")
            lost = await desk.open("/nodes")
            await expect(lost.locator("h1")).to_have_text("Service Unavailable")
            is_cut.clear()
            await expect(alert).to_be_hidden(timeout=SLOW_MS)
            await expect(lost.locator("h1")).to_have_text("Nodes", timeout=SLOW_MS)
            await until(lambda: _set_limit(engine))
            await expect(page.locator("tr[data-key='payments']")).to_contain_text("/ 9", timeout=SLOW_MS)
            assert await page.evaluate("window.isTheSame"), "without a reload"
            await page.close()
            await lost.close()


async def _set_limit(engine: Engine) -> bool:
    await engine.set_limit("payments", 9)
    return True
