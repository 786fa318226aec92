"""Hosts, origins, callers: what is checked before a request reaches its handler."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.web.web_support import HOST, answered, by_header, client, client_of, register_kinds

from synergon import Engine, OptionError
from synergon.web.access import Access, Role, User, first_of
from synergon.web.app import make_app
from synergon.web.credentials import Credentials, new_token
from synergon.web.server import parse_listen, plan


@pytest.fixture
def url(memory_url: str) -> str:
    return memory_url


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example.com"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": f"http://{HOST}.evil.example.com"},
        {"Origin": f"http://{HOST}:81"},
    ],
    ids=str,
)
async def test_a_page_of_another_site_changes_nothing(engine: Engine, headers: dict[str, str]) -> None:
    register_kinds(engine)
    async with engine, client(engine, "admin", **headers) as http:
        refused = answered(await http.post("/queues/default/pause", json={}), 403)
        assert "another" in refused["detail"]
        assert await engine.audit() == []
        answered(await http.get("/queues"), 200)


@pytest.mark.parametrize(
    "headers", [{}, {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"}, {"Sec-Fetch-Site": "none"}], ids=str
)
async def test_a_page_of_this_site_and_a_program_change_things(engine: Engine, headers: dict[str, str]) -> None:
    async with engine, client(engine, "admin", **headers) as http:
        assert answered(await http.post("/queues/default/pause", json={}), 200)["changed"] is True


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_change_is_json(engine: Engine, media_type: str) -> None:
    """What a form of another site can send without asking first."""
    async with engine, client(engine) as http:
        answered(await http.post("/queues/default/pause", content=b"{}", headers={"Content-Type": media_type}), 415)
        assert await engine.audit() == []


async def test_no_answer_allows_another_origin_to_read_it(engine: Engine) -> None:
    async with engine, client(engine, "admin", Origin="https://evil.example.com") as http:
        for response in (
            await http.get("/queues"),
            await http.options("/queues", headers={"Access-Control-Request-Method": "POST"}),
        ):
            assert not [name for name in response.headers if name.startswith("access-control")]
        assert response.status_code == 405


@pytest.mark.parametrize("host", ["evil.example.com", f"{HOST}.evil.example.com", "127.0.0.1", "", f"evil@{HOST}"])
async def test_another_host_name_is_refused(engine: Engine, host: str) -> None:
    """A name of an attacker that points to this server makes a browser believe that both are one site."""
    async with engine, client(engine) as http:
        assert "host" in answered(await http.get("/queues", headers={"Host": host}), 400)["detail"].lower()


@pytest.mark.parametrize("host", [HOST, f"{HOST}:8080", HOST.upper()])
async def test_the_port_and_the_case_of_a_host_do_not_matter(engine: Engine, host: str) -> None:
    async with engine, client(engine) as http:
        answered(await http.get("/queues", headers={"Host": host}), 200)


async def test_a_mounted_api_has_the_prefix_of_its_mount(engine: Engine) -> None:
    async with engine:
        app = Starlette(routes=[Mount("/tasks", app=engine.api(auth=by_header))])
        async with client_of(app, "read") as http:
            answered(await http.get(f"http://{HOST}/tasks/api/v1/queues"), 200)
            answered(await http.get(f"http://{HOST}/tasks/api/v1/nothing"), 404)


async def test_a_mounted_api_needs_auth(engine: Engine) -> None:
    make: Any = engine.api
    with pytest.raises(TypeError, match="auth"):
        make()
    with pytest.raises(OptionError, match="auth must be a function"):
        make(auth=None)


async def test_auth_may_be_plain_or_async_and_returns_a_user(engine: Engine) -> None:
    async def nobody(_request: object) -> None:
        return None

    wrong: Any = lambda _request: "alice"  # noqa: E731
    async with engine:
        async with client_of(make_app(engine, auth=first_of(nobody, by_header)), "read") as http:
            assert answered(await http.get("/user"), 200) == {"name": "read-user", "role": "read"}
        async with client_of(make_app(engine, auth=wrong), "read") as http:
            answered(await http.get("/user"), 500)


def test_a_user_has_a_name_and_a_role() -> None:
    with pytest.raises(OptionError, match="role is one of none, read, operate, admin, got 'root'"):
        User("alice", "root")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="printable"):
        User("a\nb", Role.READ)
    with pytest.raises(OptionError, match="list of names"):
        Access(by_header, hosts="tasks.example.com")


# ---------------------------------------------------------------- where a server listens


def credentials() -> Credentials:
    return Credentials(None, f"ci:read:{new_token()}")


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "10.0.0.5:8080", "[::]:8080", "tasks.example.com:8080"])
def test_another_address_without_credentials_is_refused_with_what_to_set(listen: str) -> None:
    with pytest.raises(OptionError, match=r"no credentials: give --credentials FILE, or set SYNERGON_WEB_TOKENS"):
        plan(listen, credentials=None, hosts=["tasks.example.com"])


@pytest.mark.parametrize("listen", [":8080", "127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.8.8.8:8080"])
def test_this_machine_needs_no_credentials_and_may_read(listen: str) -> None:
    planned = plan(listen, credentials=None)
    user: Any = planned.auth(None)
    assert (user.name, user.role) == ("local", Role.READ)
    assert {"localhost", "127.0.0.1", "::1"} <= set(planned.hosts)


def test_a_port_alone_is_on_this_machine() -> None:
    assert parse_listen(":8080") == ("127.0.0.1", 8080)
    assert parse_listen("[::1]:80") == ("::1", 80)
    for wrong in ("8080", "host", "host:99999", "http://host:80", "host:", ""):
        with pytest.raises(OptionError, match="address to listen on"):
            parse_listen(wrong)


def test_every_address_needs_the_names_of_hosts() -> None:
    with pytest.raises(OptionError, match=r"--host tasks\.example\.com"):
        plan("0.0.0.0:8080", credentials=credentials())
    planned = plan("0.0.0.0:8080", credentials=credentials(), hosts=["tasks.example.com"])
    assert "tasks.example.com" in planned.hosts
    assert "10.0.0.5" in plan("10.0.0.5:8080", credentials=credentials()).hosts


def test_a_grant_is_for_callers_without_credentials() -> None:
    assert plan(":8080", credentials=None, grant=Role.OPERATE).auth(None) == User("local", Role.OPERATE)
    with pytest.raises(OptionError, match="--grant"):
        plan(":8080", credentials=credentials(), grant=Role.OPERATE)
