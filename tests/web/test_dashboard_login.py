"""The login of the dashboard: cookies, wrong passwords, the end of sessions, and where a login leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest
from tests.web.browser import PASSWORD
from tests.web.web_support import HOST

from synergon import Engine
from synergon.web.credentials import Credentials, hash_password, hash_token, new_token
from synergon.web.dashboard import sessions
from synergon.web.dashboard.app import make_dashboard

TOKEN = new_token()


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def password() -> str:
    return hash_password(PASSWORD)


@pytest.fixture
def path(tmp_path: Path, password: str) -> Path:
    """A file with a user and a token."""
    found = tmp_path / "credentials.toml"
    found.write_text(
        f'[users.ada]\nrole = "operate"\npassword = "{password}"\n'
        f'[tokens.ci]\nrole = "read"\ntoken = "{hash_token(TOKEN)}"\n'
    )
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def http(memory_url: str, path: Path, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a dashboard with a login, which keeps cookies."""
    async with Engine(memory_url) as engine:
        app = make_dashboard(engine, auth=Credentials(path, clock=clock), hosts=[HOST])
        app.state.dashboard.sessions._clock = clock
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=f"https://{HOST}") as made:
            yield made


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def login(
    http: httpx.AsyncClient, name: str = "ada", password: str = PASSWORD, next_: str = ""
) -> httpx.Response:
    return await http.post("/login", data={"name": name, "password": password, "next": next_})


async def role(http: httpx.AsyncClient) -> str | None:
    """The role that the API sees."""
    answer = await http.get("/api/v1/user")
    return None if answer.status_code == 401 else answer.json()["role"]


async def test_a_page_leads_to_the_login_and_the_login_back_to_it(http: httpx.AsyncClient) -> None:
    asked = await http.get("/tasks?state=failed&kind=a%20b")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/login?next=%2Ftasks%3Fstate%3Dfailed%26kind%3Da%2520b"
    form = await http.get(asked.headers["location"])
    assert 'name="next" value="/tasks?state=failed&amp;kind=a%20b"' in form.text
    entered = await login(http, next_="/tasks?state=failed&kind=a%20b")
    assert (entered.status_code, entered.headers["location"]) == (303, "/tasks?state=failed&kind=a%20b")
    cookie = entered.headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", "secure", "path=/", "max-age=43200"):
        assert part in cookie
    assert len(http.cookies[sessions.COOKIE]) >= 43, "32 random bytes"
    assert await role(http) == "operate"


async def test_a_fragment_without_a_session_is_401(http: httpx.AsyncClient) -> None:
    assert (await http.get("/tasks", headers={"X-Fragment": "1"})).status_code == 401


async def test_a_token_is_enough(http: httpx.AsyncClient) -> None:
    assert (await login(http, "", TOKEN)).status_code == 303
    assert await role(http) == "read"


async def test_wrong_passwords_are_refused_and_slowed_down(http: httpx.AsyncClient, clock: Clock) -> None:
    for _ in range(3):
        refused = await login(http, password="wrong wrong wrong")
        assert refused.status_code == 401
        assert "do not fit" in refused.text
        assert sessions.COOKIE not in http.cookies
    slowed = await login(http)
    assert slowed.status_code == 429
    assert "too many failed logins" in slowed.text
    clock.now += 61
    assert (await login(http)).status_code == 303
    assert (await login(http, "nobody", PASSWORD)).status_code == 401


async def test_a_session_ends_with_its_time(http: httpx.AsyncClient, clock: Clock) -> None:
    await login(http)
    clock.now += sessions.SESSION_SECONDS - 1
    assert await role(http) == "operate"
    clock.now += 1
    assert await role(http) is None


async def test_a_session_ends_with_the_logout(http: httpx.AsyncClient) -> None:
    await login(http)
    kept = http.cookies[sessions.COOKIE]
    left = await http.post("/logout")
    assert (left.status_code, left.headers["location"]) == (303, "/login")
    http.cookies.set(sessions.COOKIE, kept, domain=HOST)
    assert await role(http) is None


@pytest.mark.parametrize("change", ["removed", "another role", "another password"])
async def test_a_session_ends_when_its_user_changes(
    http: httpx.AsyncClient, path: Path, password: str, change: str
) -> None:
    await login(http)
    assert await role(http) == "operate"
    entry = {
        "removed": "",
        "another role": f'[users.ada]\nrole = "admin"\npassword = "{password}"\n',
        "another password": f'[users.ada]\nrole = "operate"\npassword = "{hash_password("x" * 20)}"\n',
    }[change]
    write(path, f'{entry}[tokens.other]\nrole = "read"\ntoken = "{hash_token(new_token())}"\n')
    assert await role(http) is None


async def test_each_login_has_a_new_cookie_and_ends_the_old_session(http: httpx.AsyncClient) -> None:
    await login(http)
    first = http.cookies[sessions.COOKIE]
    await login(http)
    assert http.cookies[sessions.COOKIE] != first
    http.cookies.set(sessions.COOKIE, first, domain=HOST)
    assert await role(http) is None


@pytest.mark.parametrize("wanted", ["https://evil.example.com/", "//evil.example.com", "/\\evil.example.com", "x", ""])
async def test_a_login_leads_to_pages_of_the_dashboard_only(http: httpx.AsyncClient, wanted: str) -> None:
    assert (await login(http, next_=wanted)).headers["location"] == "/"


async def test_the_login_of_another_site_is_refused(http: httpx.AsyncClient) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example.com"}, {"Origin": "null"}):
        refused = await http.post("/login", data={"name": "ada", "password": PASSWORD}, headers=headers)
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
        assert (await http.post("/logout", headers=headers)).status_code == 403


async def test_a_login_that_is_no_form_or_too_large_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.post("/login", json={"name": "ada"})).status_code == 415
    assert (await login(http, password="x" * 9000)).status_code == 413
    wrong = await login(http, name='"><script>')
    assert wrong.status_code == 401
    assert '"><script>' not in wrong.text


async def test_the_cookie_belongs_to_the_mount_path(memory_url: str, path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    engine = Engine(memory_url)
    app = Starlette(routes=[Mount("/ops", engine.dashboard(auth=Credentials(path)))])
    transport = httpx.ASGITransport(app=app)
    async with engine, httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http:
        assert (await http.get("/ops/tasks")).headers["location"] == "/ops/login?next=%2Fops%2Ftasks"
        entered = await http.post("/ops/login", data={"name": "ada", "password": PASSWORD, "next": "/elsewhere"})
        assert entered.headers["location"] == "/ops/"
        assert "path=/ops;" in entered.headers["set-cookie"].lower()
        assert "secure" not in entered.headers["set-cookie"].lower()
        assert (await http.get("/ops/api/v1/user")).json()["name"] == "ada"
