"""The dashboard in a real browser: every page on a store with every state in it, live changes, filters, operations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Page, expect
from tests.web.browser import open_browser, served
from tests.web.sample import open_shop

from synergon import Engine, State
from synergon.client import bulk
from synergon.errors import StoreUnavailable
from synergon.model.task_statistics import KindNumbers, Numbers
from synergon.stores.rules.statistics import start_of
from synergon.stores.sqlite.store import SqliteStore
from synergon.web.access import Role, User, everybody
from synergon.web.dashboard.app import make_dashboard

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = "/tasks"
"""The dashboard is mounted below a path, as in an application."""


@dataclass
class Desk:
    """A browser, and the dashboard of a shop."""

    browser: Browser
    engine: Engine
    ids: dict[str, int]
    url: str
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str, **options: Any) -> Page:
        """A page. What the browser complains about is noted: errors of scripts, and what the policy forbids."""
        page = await self.browser.new_page(**options)

        def note(said: ConsoleMessage) -> None:
            if said.type == "error":
                self.complaints.append(f"{path}: {said.text}")

        page.on("console", note)
        page.on("pageerror", lambda error: self.complaints.append(f"{path}: {error}"))
        await page.goto(self.url + path)
        return page

    def paths(self) -> tuple[str, ...]:
        tasks = (f"/tasks/{self.ids[name]}" for name in ("charge", "note", "import", "waiting", "scheduled"))
        lists = ("/", "/tasks", "/flows", "/schedules", "/queues", "/nodes", "/providers", "/audit")
        views = (
            "/tasks?view=errors",
            "/tasks?tag=order&order=oldest",
            "/queues?since=7d",
            f"/tasks/{self.ids['parent']}",
        )
        return (*lists, f"/flows/{self.ids['flow']}", *tasks, *views)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    folder: Path = tmp_path_factory.mktemp("shop")
    auth = everybody(User("ada", Role.ADMIN))
    async with open_browser() as browser, open_shop(f"sqlite:///{folder}/tasks.db", many=3) as (engine, ids):
        app = Starlette(routes=[Mount(ROOT, make_dashboard(engine, auth=auth))])
        async with served(app, auth) as address:
            yield Desk(browser, engine, ids, address + ROOT)


@pytest.fixture(autouse=True)
def _quiet(desk: Desk) -> None:
    desk.complaints.clear()


@pytest.mark.parametrize(("theme", "pages"), [("light", slice(None)), ("dark", slice(8, 15))])
async def test_every_page_is_usable_by_everybody_and_breaks_no_rule(desk: Desk, theme: Any, pages: slice) -> None:
    page = await desk.open("/", color_scheme=theme)
    serious = []
    for path in desk.paths()[pages]:
        await page.goto(desk.url + path)
        await expect(page.locator("h1")).to_be_visible()
        assert "pwned" not in (await page.title()).partition("<")[0]
        found = await Axe().run(page)
        serious += [
            f"{path}: {one['id']} {one['nodes'][0]['target']} {one['nodes'][0]['failureSummary']}"
            for one in found.response["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    assert not serious, "\n".join(serious)
    assert desk.complaints == []
    await page.close()


async def test_narrow_pages_do_not_scroll_sideways(desk: Desk) -> None:
    page = await desk.open("/", viewport={"width": 360, "height": 740})
    for path in desk.paths():
        await page.goto(desk.url + path)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    await page.close()


async def test_a_change_is_shown_without_a_reload(desk: Desk) -> None:
    page = await desk.open("/tasks?kind=resize_photo")
    await page.evaluate("window.isTheSame = true")
    await page.locator("tr[data-row] a").first.focus()
    rows = await page.locator("tr[data-row]").count()
    task = await desk.engine.kinds["resize_photo"].enqueue("new.jpg", 320)
    await expect(page.locator("tr[data-row]")).to_have_count(rows + 1)
    row = page.locator(f"tr[data-key='{task.id}']")
    await expect(row.locator(".state")).to_have_text("succeeded")
    assert await page.evaluate("window.isTheSame")
    assert await page.evaluate("document.activeElement.closest('tr') !== null"), "the focus stays"
    assert desk.complaints == []
    await page.close()


async def test_a_filter_is_in_the_address_and_back_undoes_it(desk: Desk) -> None:
    page = await desk.open("/tasks")
    await page.get_by_label("Kind").fill("charge_card")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{desk.url}/tasks?kind=charge_card")
    await expect(page.locator("tr[data-row]")).to_have_count(2)
    await page.get_by_role("link", name=re.compile("failed")).click()
    await page.wait_for_url(f"{desk.url}/tasks?state=failed&kind=charge_card")
    await page.go_back()
    await page.go_back()
    await page.wait_for_url(f"{desk.url}/tasks")
    await expect(page.get_by_label("Kind")).to_have_value("")
    assert desk.complaints == []
    await page.close()


async def test_keys_search_move_and_help(desk: Desk) -> None:
    page = await desk.open("/tasks")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    first = page.locator("tr[data-row] a").first
    await expect(first).to_be_focused()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Arguments and errors")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("p")
    await expect(page.get_by_role("button", name="Paused")).to_be_visible()
    await page.goto(f"{desk.url}/nodes")
    await page.keyboard.press("/")
    await page.wait_for_url(f"{desk.url}/tasks#search")
    assert desk.complaints == []
    await page.close()


async def test_the_theme_is_switched_and_remembered(desk: Desk) -> None:
    page = await desk.open("/", color_scheme="light")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = await page.evaluate(background)
    switch = page.get_by_role("button", name="Theme")
    await switch.click()
    await switch.click()
    await expect(switch).to_have_text("Theme: dark")
    assert await page.evaluate(background) != light
    await page.reload()
    assert await page.evaluate(background) != light
    await page.close()


async def test_all_that_match_are_retried_after_a_preview(desk: Desk) -> None:
    page = await desk.open("/tasks?state=failed&kind=charge_card")
    before = [(await desk.engine.get(task.id)).claim_no for task in await desk.engine.tasks(kind="charge_card")]
    await page.get_by_role("button", name="Retry all…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading")).to_have_text("Retry 2 tasks?")
    await dialog.get_by_role("button", name="Back").click()
    assert [task.claim_no for task in await desk.engine.tasks(kind="charge_card")] == before
    await page.get_by_role("button", name="Retry all…").click()
    await dialog.get_by_role("button", name="Retry 2 tasks").click()
    await expect(page.locator("#work [role=status]")).to_have_text("2 tasks retried.")
    await page.locator("#work").get_by_role("button", name="Close").click()
    await expect(page.locator("#work")).to_be_hidden()
    assert {action.verb for action in await desk.engine.audit()} >= {"retry_all"}
    assert all(action.who.startswith("ada@") for action in await desk.engine.audit() if action.verb == "retry_all")
    assert desk.complaints == []
    await page.close()


async def test_an_operation_on_many_shows_its_progress_and_its_result(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await desk.engine.kinds["resize_photo"].with_options(tags=["late"], delay="1h").enqueue(f"{number}.jpg", 64)
    cancel, turns = SqliteStore.cancel, asyncio.Semaphore(0)

    async def held(store: SqliteStore, ids: Sequence[int], why: str | None = None) -> Any:
        await turns.acquire()
        return await cancel(store, ids, why)

    monkeypatch.setattr(bulk, "PAGE", 1)
    monkeypatch.setattr(SqliteStore, "cancel", held)
    page = await desk.open("/tasks?tag=late&state=scheduled")
    await page.get_by_role("button", name="Cancel all…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 3 tasks").click()
    work = page.locator("#work")
    for visited in range(3):
        await expect(work.locator(".num")).to_have_text(f"{visited} of 3")
        await expect(work.locator("progress")).to_have_js_property("value", visited)
        await expect(work.get_by_role("status")).to_contain_text("It goes on if you leave this page.")
        await expect(work.get_by_role("button", name="Close")).to_be_hidden()
        turns.release()
    await expect(work.get_by_role("status")).to_have_text("3 tasks cancelled.")
    await expect(page.locator("tr[data-row]")).to_have_count(0)
    assert desk.complaints == []
    await page.close()


async def test_what_stops_an_operation_on_many_is_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> Any:
        raise StoreUnavailable("the database does not answer")

    await desk.engine.kinds["resize_photo"].with_options(tags=["stuck"], delay="1h").enqueue("1.jpg", 64)
    page = await desk.open("/tasks?tag=stuck&state=scheduled")
    monkeypatch.setattr(SqliteStore, "cancel", away)
    await page.get_by_role("button", name="Cancel all…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 1 task").click()
    await expect(page.locator("#work [role=status]")).to_have_text("the database is unavailable; try again in a moment")
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    assert desk.complaints == []
    await page.close()


async def test_an_error_is_followed_from_its_group_to_its_tasks(desk: Desk) -> None:
    page = await desk.open("/tasks")
    await page.get_by_role("link", name="Errors").click()
    await page.wait_for_url(f"{desk.url}/tasks?view=errors")
    row = page.locator("tr[data-row]").filter(has_text="payment gateway answered # for order #")
    await expect(row.locator(".figure")).to_have_text("2")
    await expect(page.get_by_text("note of <script>document").first).to_be_visible()
    await row.get_by_role("link", name="ConnectionError").click()
    await page.wait_for_url(re.compile(r"/tasks\?state=failed&error=[0-9a-f]{16}$"))
    await expect(page.locator("tr[data-row]")).to_have_count(2)
    await page.get_by_role("link", name="Like ConnectionError").click()
    await page.wait_for_url(f"{desk.url}/tasks?state=failed")
    assert desk.complaints == []
    await page.close()


async def test_a_task_leads_to_what_it_has_created_and_back(desk: Desk) -> None:
    page = await desk.open(f"/tasks/{desk.ids['parent']}")
    await expect(page.locator("#children li")).to_have_count(2)
    await expect(page.locator("#children")).to_contain_text("note of <script>document.title='pwned'</script>")
    await page.locator("#children").get_by_role("link", name="Photo 4720.png in 320 px").click()
    await page.get_by_role("link", name=f"task {desk.ids['parent']}").click()
    await page.wait_for_url(f"{desk.url}/tasks/{desk.ids['parent']}")
    await page.get_by_role("link", name="As a list").click()
    await expect(page.locator("tr[data-row]")).to_have_count(2)
    assert desk.complaints == []
    await page.close()


async def test_rare_filters_are_unfolded_and_part_of_the_address(desk: Desk) -> None:
    page = await desk.open("/tasks")
    await expect(page.get_by_label("Node")).to_be_hidden()
    await page.get_by_label("More filters").check()
    await page.get_by_label("Node").fill("shop")
    await page.get_by_label("Enqueued from (UTC)").fill("2026-01-01T00:00")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url(f"{desk.url}/tasks?node=shop&begin=2026-01-01T00%3A00")
    await expect(page.get_by_label("Node")).to_have_value("shop")
    await page.get_by_label("Order").select_option("oldest")
    await page.wait_for_url(f"{desk.url}/tasks?order=oldest&node=shop&begin=2026-01-01T00%3A00")
    first = page.locator("tr[data-row]").first
    assert await first.get_attribute("data-key") == str((await desk.engine.tasks(ascending=True))[0].id)
    assert desk.complaints == []
    await page.close()


async def test_the_depth_of_queues_is_drawn_and_goes_on_live(desk: Desk) -> None:
    page = await desk.open("/")
    minute = start_of(60, await desk.engine._store.now())
    counted = KindNumbers(kind="<i>deep</i>", queue="<b>deep</b>", numbers=Numbers(depth=4321))
    await desk.engine._store.append_statistics("test", minute - 600_000_000, [counted])
    await expect(page.locator("#depth .deep").first).to_be_attached(timeout=20_000)
    await expect(page.locator("#depth")).to_contain_text("<b>deep</b> 4\u202f321", timeout=20_000)
    await expect(page.locator("#depth .axis")).to_contain_text("ready tasks, at most 4\u202f321", timeout=20_000)
    await expect(page.locator("#latency .slow").first).to_be_attached()
    assert desk.complaints == []
    await page.close()


async def test_a_failed_task_is_mended_from_its_page(desk: Desk) -> None:
    page = await desk.open(f"/tasks/{desk.ids['note']}")
    await page.get_by_role("button", name="Delete…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Back").click()
    mended = desk.engine.kinds["check_note"]
    original = mended.function

    async def passes(note: str) -> None: ...

    mended.function = passes
    try:
        await page.get_by_role("button", name="Retry").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        await expect(page.locator("#head .state")).to_have_text("succeeded")
    finally:
        mended.function = original
    await expect(page.locator("#why h2")).to_have_text("How it ended")
    assert desk.complaints == []
    await page.close()


async def test_progress_is_live_and_details_stay_open(desk: Desk) -> None:
    page = await desk.open(f"/tasks/{desk.ids['import']}")
    await page.get_by_text("As Python").click()
    first = await page.locator("#why .progress").inner_text()
    await expect(page.locator("#why .progress")).not_to_have_text(first)
    await expect(page.locator("#python")).to_be_visible()
    assert desk.complaints == []
    await page.close()


async def test_a_queue_is_resumed_and_paused(desk: Desk) -> None:
    page = await desk.open("/queues")
    row = page.locator("tr[data-key='imports']")
    await row.get_by_role("button", name="Pause").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(row.get_by_text("paused")).to_be_visible()
    await row.get_by_role("button", name="Resume").click()
    await expect(row.get_by_text("paused")).to_be_hidden()
    await page.goto(f"{desk.url}/audit")
    await expect(page.locator("tr[data-row]").first).to_contain_text("resume imports")
    assert desk.complaints == []
    await page.close()


async def test_a_graph_is_zoomed_and_stays_so(desk: Desk) -> None:
    page = await desk.open(f"/flows/{desk.ids['flow']}")
    graph = page.locator("#graph")
    whole = await graph.get_attribute("viewBox")
    await page.get_by_role("button", name="Zoom in").click()
    zoomed = await graph.get_attribute("viewBox")
    assert zoomed != whole
    async with page.expect_response(lambda answer: answer.request.headers.get("x-fragment") == "1"):
        pass
    assert await graph.get_attribute("viewBox") == zoomed
    await expect(graph.get_by_text("render_page × 24", exact=True)).to_be_visible()
    await page.close()


async def test_a_database_that_goes_away_is_said_and_the_page_heals(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise StoreUnavailable("the database does not answer")

    page = await desk.open("/queues")
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "status", away)
        await expect(page.get_by_role("alert")).to_contain_text("The database is unavailable", timeout=20_000)
        await expect(page.locator("tr[data-key='mail']")).to_be_visible()
        lost = await desk.open("/queues")
        await expect(lost.locator("h1")).to_have_text("Service Unavailable")
    await expect(page.get_by_role("alert")).to_be_hidden(timeout=20_000)
    await expect(lost.locator("h1")).to_have_text("Queues and kinds", timeout=20_000)
    assert (await desk.engine.counts())[State.RUNNING]
    await page.close()
    await lost.close()
