"""Users and tokens: from a file and the environment, revoked, and slowed down after failures."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path

import pytest
from tests.web.web_support import answered, client_of

from synergon import ConfigurationError, Engine
from synergon.web import credentials as module
from synergon.web.app import make_app
from synergon.web.credentials import Credentials, hash_password, hash_token, new_token

PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.SCRYPT, "n", 2**4)


@pytest.fixture
def url(memory_url: str) -> str:
    return memory_url


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, *entries: str) -> Path:
    path.write_text("\n".join(entries))
    moment = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(moment, moment))
    return path


def token_entry(name: str, role: str, token: str) -> str:
    return f'[tokens.{name}]\nrole = "{role}"\ntoken = "{hash_token(token)}"'


def user_entry(name: str, role: str, password: str = PASSWORD) -> str:
    return f'[users.{name}]\nrole = "{role}"\npassword = "{hash_password(password)}"'


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


async def test_tokens_and_passwords_name_the_caller(engine: Engine, tmp_path: Path) -> None:
    token, other = new_token(), new_token()
    path = write(tmp_path / "web.toml", token_entry("ci", "read", token), user_entry("alice", "operate"))
    auth = Credentials(path, f"deploy:admin:{other}")
    async with engine, client_of(make_app(engine, auth=auth)) as http:
        for headers, name, role in (
            ({"Authorization": f"Bearer {token}"}, "ci", "read"),
            ({"Authorization": f"bearer {other}"}, "deploy", "admin"),
            (basic("alice", PASSWORD), "alice", "operate"),
            (basic("alice", PASSWORD), "alice", "operate"),
        ):
            assert answered(await http.get("/user", headers=headers), 200) == {"name": name, "role": role}
        await http.post("/queues/default/pause", json={}, headers=basic("alice", PASSWORD))
        assert [action.who for action in await engine.audit()] == ["alice@10.0.0.7"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Digest abc"},
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("nobody", PASSWORD),
        basic("alice", "x" * 5000),
    ],
    ids=str,
)
async def test_an_unknown_caller_gets_401(engine: Engine, tmp_path: Path, headers: dict[str, str]) -> None:
    path = write(tmp_path / "web.toml", user_entry("alice", "admin"))
    async with engine, client_of(make_app(engine, auth=Credentials(path))) as http:
        answered(await http.get("/queues", headers=headers), 401)


async def test_a_revoked_token_is_rejected_from_the_next_request_on(engine: Engine, tmp_path: Path) -> None:
    token, other = new_token(), new_token()
    path = write(tmp_path / "web.toml", token_entry("ci", "operate", token), token_entry("b", "read", other))
    headers = {"Authorization": f"Bearer {token}"}
    async with engine, client_of(make_app(engine, auth=Credentials(path))) as http:
        answered(await http.get("/queues", headers=headers), 200)
        write(path, token_entry("b", "read", other), "")
        answered(await http.post("/queues/default/pause", json={}, headers=headers), 401)
        assert await engine.audit() == []
        write(path, "this is no TOML")
        answered(await http.get("/queues", headers={"Authorization": f"Bearer {other}"}), 401)
        write(path, token_entry("ci", "read", token))
        answered(await http.get("/queues", headers=headers), 200)
        answered(await http.post("/queues/default/pause", json={}, headers=headers), 403)


async def test_a_changed_password_is_rejected_although_it_was_right_before(engine: Engine, tmp_path: Path) -> None:
    path = write(tmp_path / "web.toml", user_entry("alice", "read"))
    async with engine, client_of(make_app(engine, auth=Credentials(path))) as http:
        answered(await http.get("/queues", headers=basic("alice", PASSWORD)), 200)
        write(path, user_entry("alice", "read", "another long password"), "")
        answered(await http.get("/queues", headers=basic("alice", PASSWORD)), 401)


async def test_failed_logins_are_slowed_down(engine: Engine, tmp_path: Path) -> None:
    clock = Clock()
    path = write(tmp_path / "web.toml", user_entry("alice", "read"), user_entry("bob", "read"))
    auth = Credentials(path, clock=clock)
    async with engine, client_of(make_app(engine, auth=auth)) as http:
        for _ in range(module.FREE_FAILURES):
            answered(await http.get("/queues", headers=basic("alice", "wrong")), 401)
        waits = await http.get("/queues", headers=basic("alice", PASSWORD))
        assert "too many failed logins" in answered(waits, 429)["detail"]
        assert int(waits.headers["retry-after"]) >= 1
        answered(await http.get("/queues", headers=basic("bob", PASSWORD)), 200)
        pauses = []
        for _ in range(8):
            clock.now += 100
            answered(await http.get("/queues", headers=basic("alice", "wrong")), 401)
            pauses.append(int((await http.get("/queues", headers=basic("alice", "wrong"))).headers["retry-after"]))
        assert pauses == sorted(pauses)
        assert pauses[-1] == 61
        clock.now += 100
        answered(await http.get("/queues", headers=basic("alice", PASSWORD)), 200)
        answered(await http.get("/queues", headers=basic("alice", "wrong")), 401)
        answered(await http.get("/queues", headers=basic("alice", PASSWORD)), 200)


async def test_a_known_token_and_a_known_password_never_wait_for_the_failures_of_others(
    engine: Engine, tmp_path: Path
) -> None:
    """Callers behind one proxy have one address: one with an old token must not keep the others out."""
    token = new_token()
    path = write(tmp_path / "web.toml", token_entry("ci", "read", token), user_entry("alice", "read"))
    async with engine, client_of(make_app(engine, auth=Credentials(path, clock=Clock()))) as http:
        answered(await http.get("/queues", headers=basic("alice", PASSWORD)), 200)
        statuses = [
            (await http.get("/queues", headers={"Authorization": f"Bearer {new_token()}"})).status_code
            for _ in range(module.FREE_FAILURES + 2)
        ]
        assert statuses == [401] * module.FREE_FAILURES + [429] * 2
        answered(await http.get("/queues", headers={"Authorization": f"Bearer {token}"}), 200)
        for _ in range(module.FREE_FAILURES + 1):
            await http.get("/queues", headers=basic("alice", "wrong"))
        answered(await http.get("/queues", headers=basic("alice", PASSWORD)), 200)


async def test_guesses_that_arrive_together_are_not_all_tried(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "web.toml", user_entry("alice", "read"))
    tried: list[str] = []

    def is_wrong(_known: object, password: str) -> bool:
        tried.append(password)
        return False

    monkeypatch.setattr(module._Password, "matches", is_wrong)
    async with engine, client_of(make_app(engine, auth=Credentials(path, clock=Clock()))) as http:
        guesses = (http.get("/queues", headers=basic("alice", f"guess {number}")) for number in range(50))
        answers = await asyncio.gather(*guesses)
        assert len(tried) <= module.FREE_FAILURES + module.MOST_SCRYPT
        assert {answer.status_code for answer in answers} == {401, 429}


async def test_failures_are_forgotten_after_a_while(engine: Engine, tmp_path: Path) -> None:
    clock = Clock()
    path = write(tmp_path / "web.toml", user_entry("alice", "read"))
    async with engine, client_of(make_app(engine, auth=Credentials(path, clock=clock))) as http:
        for _ in range(module.FREE_FAILURES + 1):
            await http.get("/queues", headers=basic("alice", "wrong"))
        clock.now += module.FORGET_SECONDS + module.LONGEST_PAUSE_SECONDS
        for _ in range(module.FREE_FAILURES):
            answered(await http.get("/queues", headers=basic("alice", "wrong")), 401)


async def test_an_address_that_tries_many_names_has_to_wait(engine: Engine, tmp_path: Path) -> None:
    path = write(tmp_path / "web.toml", user_entry("alice", "read"))
    async with engine, client_of(make_app(engine, auth=Credentials(path, clock=Clock()))) as http:
        for number in range(module.FREE_FAILURES_OF_ADDRESS):
            answered(await http.get("/queues", headers=basic(f"name-{number}", "wrong")), 401)
        answered(await http.get("/queues", headers=basic("alice", PASSWORD)), 429)


def test_only_so_many_failures_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 10)
    failed = module.FailedLogins(Clock())
    for number in range(100):
        failed.note(f"10.0.0.{number}", "alice")
    assert len(failed._failures) == 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "cannot be read"),
        ("[people.alice]\nrole = 'read'", "has \\[users.NAME\\] and \\[tokens.NAME\\]"),
        ("users = 3", "written \\[users.NAME\\]"),
        ("[users.alice]\nrole = 'root'\npassword = 'x'", "needs a role: none, read, operate, admin; got 'root'"),
        ("[users.alice]\nrole = 'read'\npassword = 'plain text'", "synergon credentials password"),
        ("[tokens.ci]\nrole = 'read'\ntoken = 'plain text'", "synergon credentials token"),
        ("[tokens.ci]\nrole = 'read'", "synergon credentials token"),
        ("", "no credentials"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_without_secrets(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "web.toml", text)
    with pytest.raises(ConfigurationError, match=words) as raised:
        Credentials(path)
    assert "plain text" not in str(raised.value)


@pytest.mark.parametrize("text", ["ci", "ci:read", "ci:root:" + "x" * 40, "ci:read:short", ":read:" + "x" * 40])
def test_wrong_tokens_in_the_environment_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(ConfigurationError, match="entry 1 of SYNERGON_WEB_TOKENS") as raised:
        Credentials(None, text)
    assert "x" * 40 not in str(raised.value)


def test_a_token_has_32_random_bytes_and_a_password_a_salt() -> None:
    assert len(base64.urlsafe_b64decode(new_token() + "=")) == 32
    assert new_token() != new_token()
    assert hash_password(PASSWORD) != hash_password(PASSWORD)
    assert PASSWORD not in hash_password(PASSWORD)
