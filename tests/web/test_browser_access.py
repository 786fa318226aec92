"""Access to the dashboard in a real browser: the login, the end of a session, roles, and requests of other sites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect
from tests.web.browser import PASSWORD, credentials, open_browser, served
from tests.web.sample import make_shop

from synergon import Engine
from synergon.web.access import Role, User, everybody
from synergon.web.dashboard.app import Dashboard, make_dashboard

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Desk:
    """A browser, and two dashboards of one engine: with a login, and for everybody."""

    browser: Browser
    engine: Engine
    dashboard: Dashboard
    url: str
    open_url: str

    async def enter(self, name: str, password: str = PASSWORD, path: str = "/tasks") -> Page:
        """A page after the login form was sent."""
        context = await self.browser.new_context()
        page = await context.new_page()
        await page.goto(self.url + path)
        await page.get_by_label("Name").fill(name)
        await page.get_by_label("Password or token").fill(password)
        await page.get_by_role("button", name="Sign in").click()
        return page


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    folder: Path = tmp_path_factory.mktemp("access")
    engine, auth, open_auth = make_shop("memory://"), credentials(folder), everybody(User("local", Role.ADMIN))
    app, open_app = make_dashboard(engine, auth=auth), make_dashboard(engine, auth=open_auth)
    async with (
        engine,
        open_browser() as browser,
        served(app, auth) as url,
        served(open_app, open_auth) as open_url,
    ):
        await engine.kinds["resize_photo"].enqueue("1.jpg", 64)
        yield Desk(browser, engine, app.state.dashboard, url, open_url)


async def test_a_wrong_password_is_refused_and_a_right_one_leads_to_the_page(desk: Desk) -> None:
    page = await desk.enter("admin", "wrong wrong wrong", "/tasks?state=ready")
    await expect(page.get_by_role("alert").first).to_contain_text("do not fit")
    await page.get_by_label("Password or token").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(f"{desk.url}/tasks?state=ready")
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    (cookie,) = await page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url(f"{desk.url}/login")
    await page.goto(f"{desk.url}/tasks")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.context.close()


async def test_a_session_that_ends_is_said_on_the_page(desk: Desk) -> None:
    page = await desk.enter("read")
    await page.wait_for_url(f"{desk.url}/tasks")
    assert desk.dashboard.sessions is not None
    desk.dashboard.sessions.end_all()
    await expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
    await page.get_by_role("link", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.context.close()


async def test_the_role_read_sees_no_buttons_and_its_post_is_refused(desk: Desk) -> None:
    page = await desk.enter("read")
    await page.wait_for_url(f"{desk.url}/tasks")
    (task,) = await desk.engine.tasks()
    for path in ("/tasks", f"/tasks/{task.id}", "/queues", "/schedules", "/nodes", "/providers"):
        await page.goto(desk.url + path)
        await expect(page.locator("h1")).to_be_visible()
        assert await page.locator("button[data-url], button[data-bulk]").count() == 0, path
    status = await page.evaluate(
        """async (id) => (await fetch(`/api/v1/tasks/${id}/cancel`, {
            method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"})).status""",
        task.id,
    )
    assert status == 403
    assert await desk.engine.audit() == []
    await page.context.close()


async def test_the_post_of_another_site_is_refused(desk: Desk) -> None:
    (task,) = await desk.engine.tasks()
    target = f"{desk.open_url}/api/v1/tasks/{task.id}/cancel"
    attack = f"""<form method="post" enctype="text/plain" action="{target}"><input name="x" value="y"></form>"""
    page = await desk.browser.new_page()

    async def answer(route: Route) -> None:
        await route.fulfill(body=attack, content_type="text/html")

    await page.route("http://evil.example.com/", answer)
    await page.goto("http://evil.example.com/")
    async with page.expect_response(target) as caught:
        await page.evaluate("document.forms[0].submit()")
    answered = await caught.value
    await answered.finished()
    assert answered.status == 403
    await page.close()
    page = await desk.browser.new_page()
    await page.route("http://evil.example.com/", answer)
    await page.goto("http://evil.example.com/")
    send = """async (url) => { try { return (await fetch(url, {method: "POST", mode: "no-cors", body: "{}"})).type; }
        catch { return "blocked"; } }"""
    assert await page.evaluate(send, target) in ("opaque", "blocked")
    assert await desk.engine.audit() == [], "nothing was changed"
    await page.close()
