"""The pages of the dashboard: who sees which, what they show, and that every text of a task is shown as text."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx2 as httpx
import pytest
from markupsafe import escape
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.support import PATIENCE_SECONDS
from tests.web.sample import HOSTILE, make_shop, open_shop
from tests.web.web_support import HOST, by_header

from synergon import Engine, Retry, State
from synergon.errors import OptionError, StoreUnavailable
from synergon.model.task_statistics import KindNumbers, Numbers
from synergon.stores.memory.store import MemoryStore
from synergon.stores.rules.statistics import start_of
from synergon.web.dashboard.app import make_dashboard
from synergon.web.dashboard.tables import MENU, PAGES

PARAMETER = re.compile(r"\{\w+(?::\w+)?\}")
FRAGMENT = {"X-Fragment": "1"}


def client(engine: Engine, role: str | None, **headers: str) -> httpx.AsyncClient:
    """A client of the dashboard, with this role."""
    app = make_dashboard(engine, auth=by_header, hosts=[HOST])
    return client_of(app, role, **headers)


def client_of(app: Any, role: str | None, **headers: str) -> httpx.AsyncClient:
    sent = headers if role is None else {"X-Role": role, **headers}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=f"http://{HOST}", headers=sent)


def paths(ids: dict[str, int]) -> dict[str, str]:
    """A path of each page, by the path of its route."""
    given = {"/tasks/{task_id:int}": ids["charge"], "/flows/{flow_id:int}": ids["flow"]}
    return {route.path: PARAMETER.sub(str(given.get(route.path)), route.path) for route in PAGES}


async def test_each_page_is_for_callers_who_may_read(memory_url: str) -> None:
    async with open_shop(memory_url, many=2) as (engine, ids):
        app = make_dashboard(engine, auth=by_header, hosts=[HOST])
        for role, status in ((None, 401), ("none", 403), ("read", 200), ("operate", 200), ("admin", 200)):
            async with client_of(app, role) as http:
                for path in paths(ids).values():
                    response = await http.get(path)
                    assert response.status_code == status, f"{role} {path}: {response.text}"
                    assert response.headers["content-type"] == "text/html; charset=utf-8"
                    policy = response.headers["content-security-policy"]
                    assert "script-src 'self'" in policy
                    assert "unsafe" not in policy
                    assert "frame-ancestors 'none'" in policy
                    buttons = re.findall(r"data-(?:url|bulk)=", response.text)
                    assert not buttons or role in ("operate", "admin")
                    if status != 200:
                        assert "charge_card" not in response.text


async def test_pages_have_the_buttons_of_the_role(memory_url: str) -> None:
    async with open_shop(memory_url, many=2) as (engine, ids):
        for role, shown, hidden in (("operate", ("/queues",), ("/nodes",)), ("admin", ("/queues", "/nodes"), ())):
            async with client(engine, role) as http:
                for path in shown:
                    assert "data-url=" in (await http.get(path)).text
                for path in hidden:
                    assert "data-url=" not in (await http.get(path)).text
                assert "data-url=" in (await http.get(f"/tasks/{ids['charge']}")).text
                assert "data-bulk=" in (await http.get("/tasks")).text


async def test_hostile_texts_are_shown_as_texts(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, ids), client(engine, "admin") as http:
        for path in ("/", "/tasks", f"/tasks/{ids['note']}", f"/tasks?search={'<script>'}"):
            found = (await http.get(path)).text
            assert "<script>document" not in found
            assert "<img" not in found
            assert "<b>vip" not in found
            assert "\x1b" not in found
            assert "\u202e" not in found
        task = (await http.get(f"/tasks/{ids['note']}")).text
        assert str(escape(HOSTILE.partition("\u202e")[0])) in task
        assert "&lt;b&gt;vip" in task
        for query in ("kind=%3Cscript%3E", "search=%22%3E%3Cscript%3E", "title='%20onfocus=x"):
            found = (await http.get(f"/tasks?{query}")).text
            assert "<script>" not in found.replace('<script src="/static/theme.js"></script>', "")
            assert "' onfocus" not in found
        missing = await http.get("/%3Cscript%3E")
        assert missing.status_code == 404
        assert "<script>" not in missing.text


async def test_secrets_are_hidden(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, ids), client(engine, "admin") as http:
        page = await http.get(f"/tasks/{ids['paused']}")
        assert "late@example.com" in page.text
        receipts = await engine.tasks(kind="send_receipt", state=State.SUCCEEDED)
        page = await http.get(f"/tasks/{receipts[0].id}")
        assert "sk-live-0815" not in page.text
        assert "[redacted]" in page.text


async def test_the_page_of_a_task_says_why_it_waits_and_how_it_failed(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, ids), client(engine, "read") as http:
        assert "queue mail is paused" in (await http.get(f"/tasks/{ids['paused']}")).text
        waiting = (await http.get(f"/tasks/{ids['waiting']}")).text
        assert "Why it waits" in waiting
        assert f"task {ids['import']} (import_orders, running)" in waiting
        failed = (await http.get(f"/tasks/{ids['charge']}")).text
        assert failed.count('<li data-key="') >= 3, "three attempts"
        assert "raise ConnectionError" in failed
        assert str(escape("engine.call('charge_card', order=4712, amount=19.9)")) in failed
        running = (await http.get(f"/tasks/{ids['import']}")).text
        assert "of 10000 rows" in running


async def test_filters_are_part_of_the_address_and_pages_follow_by_cursor(memory_url: str) -> None:
    engine = make_shop(memory_url)
    async with engine, client(engine, "read") as http:
        await engine.kinds["resize_photo"].enqueue_many([(f"{number}.jpg", 64) for number in range(60)])
        await engine.kinds["fetch_sales"].enqueue("north")
        first = (await http.get("/tasks?kind=resize_photo&state=ready")).text
        assert first.count("data-row") == 50
        assert 'name="kind" list="kinds" value="resize_photo"' in first
        (following,) = re.findall(r'rel="next" href="([^"]+)"', first)
        second = (await http.get(html.unescape(following))).text
        assert second.count("data-row") == 10
        assert "First page" in second
        assert "No task matches" in (await http.get("/tasks?kind=nothing&since=1h")).text
        for query in ("state=nonsense", "since=2h", "colour=red", "after=nonsense"):
            response = await http.get(f"/tasks?{query}")
            assert response.status_code == 400, query
            assert "<h1>Bad Request</h1>" in response.text


async def test_every_link_and_file_is_below_the_mount_path(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, ids):
        app = Starlette(routes=[Mount("/ops/tasks", engine.dashboard(auth=by_header))])
        async with client_of(app, "admin") as http:
            for path in paths(ids).values():
                page = await http.get(f"/ops/tasks{path}")
                assert page.status_code == 200
                found = re.findall(r'(?:href|src|action|data-api)="([^"]*)"', page.text)
                assert found
                assert all(link.startswith(("/ops/tasks/", "#")) for link in found), path
                assert 'aria-current="page"' in page.text
            for name in ("dashboard.js", "theme.js", "dashboard.css", "icon.svg"):
                file = await http.get(f"/ops/tasks/static/{name}")
                assert file.status_code == 200
                assert file.headers["x-content-type-options"] == "nosniff"
            queue = await http.post("/ops/tasks/api/v1/queues/media/pause", json={})
            assert queue.json() == {"name": "media", "changed": True}


def test_a_dashboard_without_auth_is_refused(memory_url: str) -> None:
    engine = Engine(memory_url)
    with pytest.raises(TypeError, match="auth"):
        engine.dashboard()  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="auth must be a function"):
        engine.dashboard(auth=None)  # type: ignore[arg-type]


async def test_a_change_from_another_site_is_refused(memory_url: str) -> None:
    engine = make_shop(memory_url)
    async with engine:
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example.com"}):
            async with client(engine, "admin", **headers) as http:
                response = await http.post("/api/v1/queues/mail/pause", json={})
                assert response.status_code == 403
        async with client(engine, "read") as http:
            assert (await http.post("/api/v1/queues/mail/pause", json={})).status_code == 403
        assert await engine.audit() == []


async def test_a_fragment_is_the_main_part_and_unchanged_ones_are_not_sent(memory_url: str) -> None:
    engine = make_shop(memory_url)
    async with engine, client(engine, "read", **FRAGMENT) as http:
        first = await http.get("/queues")
        assert "<html" not in first.text
        assert 'id="queues"' in first.text
        again = await http.get("/queues", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        await engine.kinds["resize_photo"].enqueue("1.jpg", 64)
        changed = await http.get("/queues", headers={"If-None-Match": first.headers["etag"]})
        assert changed.status_code == 200


async def test_a_database_that_is_away_is_said_and_heals(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> Any:
        raise StoreUnavailable("db.internal:5432 does not answer")

    engine = make_shop(memory_url)
    async with engine, client(engine, "read") as http:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryStore, "nodes", away)
            page = await http.get("/nodes")
        assert page.status_code == 503
        assert "the database is unavailable" in page.text
        assert "db.internal" not in page.text
        assert 'aria-label="Pages"' in page.text
        assert (await http.get("/nodes")).status_code == 200


async def test_an_empty_database_has_pages_that_say_so(memory_url: str) -> None:
    engine = Engine(memory_url)
    async with engine, client(engine, "admin") as http:
        for path, _ in MENU:
            page = await http.get(path)
            assert page.status_code == 200, page.text
            assert 'class="empty"' in page.text or path == "/"


async def test_a_flow_with_many_tasks_says_so(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from synergon.web import flow_routes

    monkeypatch.setattr(flow_routes, "MOST_STEPS", 3)
    async with open_shop(memory_url, many=1) as (engine, ids), client(engine, "read") as http:
        page = await http.get(f"/flows/{ids['flow']}")
        assert page.status_code == 200
        assert "more than an answer of 3" in page.text


async def test_the_overview_has_the_figures_of_a_period(memory_url: str) -> None:
    async with open_shop(memory_url, many=3) as (engine, _), client(engine, "read") as http:
        figures = sum(one.succeeded for one in await engine.statistics(since="1h"))
        for since, name, bars in (("1h", "last hour", 60), ("1d", "last day", 24), ("7d", "last week", 28)):
            page = (await http.get(f"/?since={since}")).text
            assert page.count('class="ground"') == 3 * bars  # ended tasks, depth, start latency
            assert f'aria-current="true">{name}' in page
            assert f"Ended tasks by time: {figures} succeeded, 8 failed" in page
            assert "ConnectionError: payment gateway answered # for order #" in page
        assert (await http.get("/?since=1y")).status_code == 400
        kinds = (await http.get("/queues")).text
        assert "figures of the last hour" in kinds


async def test_the_overview_and_the_queues_have_the_depth_of_a_period(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, _), client(engine, "read") as http:
        minute = start_of(60, await engine._store.now())
        for queue, depth in (("maps", 1200), ("<b>", 34)):
            counted = KindNumbers(kind="locate_address", queue=queue, numbers=Numbers(depth=depth))
            await engine._store.append_statistics("test", minute - 5 * 60_000_000, [counted])
        for since in ("1h", "1d", "7d"):
            page = (await http.get(f"/?since={since}")).text
            # In bars of an hour or more are ready tasks of the shop, too.
            assert re.search("1\u202f2\\d\\d ready \\(maps 1\u202f200, &lt;b&gt; 34", page)
            assert re.search(r"Ready tasks by time: at most 12\d\d", page)
            assert "95 of 100 tasks started within" in page
            await engine.pause("maps")
            queues = (await http.get(f"/queues?since={since}")).text
            assert "ready tasks: at most 1\u202f200" in queues
            assert "starts by time" in queues
        assert (await http.get("/queues?since=1y")).status_code == 400


async def test_errors_are_shown_in_groups_that_can_be_listed_and_retried(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_shop(memory_url, many=1) as (engine, ids):
        async with client(engine, "read") as http:
            page = (await http.get("/tasks?view=errors")).text
            assert "payment gateway answered # for order #" in page
            assert "8 tasks: all that match." in page
            assert "&lt;script&gt;document.title=" in page
            assert "<script>document" not in page
            assert "data-bulk" not in page
            link = re.search(
                r'href="(/tasks\?state=failed&amp;error=\w+)"><strong class="name bad">ConnectionError', page
            )
            assert link is not None
            listed = (await http.get(html.unescape(link[1]))).text
            assert listed.count("<tr data-row") == 2
            assert f'/tasks/{ids["charge"]}"' in listed
            assert "Like ConnectionError: payment gateway answered 502" in listed
            assert f'href="{link[1]}">Tasks with this error</a>' in (await http.get(f"/tasks/{ids['charge']}")).text
            none = (await http.get("/tasks?view=errors&kind=nothing")).text
            assert "No task that matches has failed." in none
            monkeypatch.setattr("synergon.web.error_routes.MOST_GROUPED", 3)
            assert "The newest 3 tasks that match were looked at" in (await http.get("/tasks?view=errors")).text
        async with client(engine, "operate") as http:
            assert 'data-bulk="retry"' in (await http.get("/tasks?view=errors")).text


async def test_a_task_shows_what_it_has_created_and_what_has_created_it(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, ids), client(engine, "read") as http:
        children = [task.id for task in await engine.tasks(parent=ids["parent"])]
        page = (await http.get(f"/tasks/{ids['parent']}")).text
        assert len(children) == 2
        assert all(f'/tasks/{child}"' in page for child in children)
        assert "note of &lt;script&gt;" in page
        child = (await http.get(f"/tasks/{children[0]}")).text
        assert f'<dt>Created by</dt><dd><a href="/tasks/{ids["parent"]}">' in child
        listed = (await http.get(f"/tasks?parent={ids['parent']}")).text
        assert listed.count("<tr data-row") == 2
        assert f"Created by task {ids['parent']}" in listed


async def test_tasks_are_filtered_by_flow_node_and_time_and_sorted(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, ids), client(engine, "read") as http:

        async def rows(query: str) -> list[int]:
            page = await http.get(f"/tasks?{query}")
            assert page.status_code == 200, page.text
            return [int(found) for found in re.findall(r'<tr data-row data-key="(\d+)"', page.text)]

        steps = [task.id for task in await engine.tasks(flow=ids["flow"])]
        assert await rows(f"flow={ids['flow']}") == steps
        assert await rows(f"flow={ids['flow']}&order=oldest") == steps[::-1]
        (node,) = await engine.nodes()
        assert ids["import"] in await rows(f"node={node.name}&state=running")
        assert await rows(f"node={node.id}") == await rows(f"node={node.name}")
        assert await rows("node=nobody") == []
        assert await rows("until=2020-01-01T00:00") == []
        assert len(await rows("begin=2020-01-01T00:00")) == 50
        assert await rows("order=due") == [ids["scheduled"]]
        assert set(await rows("order=end&state=cancelled")) >= {ids["cancelled"]}
        page = (await http.get("/tasks")).text
        for suggested in ("send_receipt", "mail", node.name, "order"):
            assert f'<option value="{suggested}"></option>' in page
        assert f'<option value="{ids["flow"]}">monthly report</option>' in page
        for wrong in ("flow=x", "flow=0", "begin=yesterday", "order=name", "order=due&state=ready", "view=graph"):
            assert (await http.get(f"/tasks?{wrong}")).status_code == 400, wrong


async def test_messages_of_errors_that_may_contain_secrets_are_hidden(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task(retry=Retry(attempts=1))
    async def sign_in(user: str, password: str) -> None:
        raise ValueError(f"{user} cannot sign in with {password}")

    async with engine.worker():
        failed = await sign_in.enqueue("ada", "hunter22")
        await engine.wait(failed.id, timeout=PATIENCE_SECONDS)
        async with client(engine, "admin") as http:
            page = (await http.get("/")).text
            assert "ValueError" in page
            assert "hunter22" not in page


async def test_a_server_that_is_out_of_service_says_why(memory_url: str) -> None:
    async with open_shop(memory_url, many=1) as (engine, _), client(engine, "read") as http:
        page = (await http.get("/providers")).text
        assert "2 failures in a row; it gets tasks again in" in page
        (waiting,) = await engine.tasks(kind="locate_address", state=State.READY)
        assert "server https://maps.example.com" in (await http.get(f"/tasks/{waiting.id}")).text


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_pages_show_every_state_on_every_store(store: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(f"{store}_url")
    async with open_shop(url, many=1) as (engine, ids), client(engine, "read") as http:
        page = (await http.get("/tasks")).text
        assert all(f"#state-{state}" in page for state in State)
        for path in paths(ids).values():
            assert (await http.get(path)).status_code == 200
