"""Secrets in arguments, results, metadata, errors and texts: none of them leaves the process."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from tests.support import PATIENCE_SECONDS
from tests.web.web_support import Card, answered, client, register_kinds

from synergon import Engine, Secret
from synergon.web.redaction import Redactor, hide_secrets, is_secret_name, redacted_text
from synergon.web.task_routes import SEARCHED_PAGES

SECRETS = ("DE89-3704-0044", "4111-1111-1111", "hunter-22", "session-of-ada")


@pytest.fixture
def url(memory_url: str) -> str:
    return memory_url


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWORD", "dbPassword", "user_passwd", "pwd", "token", "access_token", "accessToken", "tokens"),
        *("secret", "client-secret", "Authorization", "api_key", "apiKey", "APIKey", "apikey", "x-api-key", "cookie"),
        *("private_key", "accessKey", "credentials", "AWS_SECRET_ACCESS_KEY", "passphrase"),
        *("dbpassword", "accesstoken", "auth", "jwt", "session_id", "sessionId", "passcode", "signature", "bearer"),
    ],
)
def test_these_names_are_those_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["name", "key", "tokenizer", "author", "passenger", "secretary", "compass", "session", "authors"]
)
def test_these_names_are_not(name: str) -> None:
    assert not is_secret_name(name)


def test_a_number_of_tokens_is_no_secret_and_a_pin_is() -> None:
    assert hide_secrets({"max_tokens": 4096, "token": 1234, "secret": True, "password": None, "tokens": ["a"]}) == {
        "max_tokens": 4096,
        "token": "[redacted]",
        "secret": True,
        "password": None,
        "tokens": "[redacted]",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login failed: password=hunter22, user=ada", "login failed: password=[redacted], user=ada"),
        ("{'api_key': 'abc def', 'user': 'ada'}", "{'api_key': [redacted], 'user': 'ada'}"),
        ('"Authorization": "Bearer abc.def"', '"Authorization": [redacted]'),
        ("Authorization: Bearer abc.def", "Authorization: [redacted]"),
        ("sent Bearer abcdefgh1234 to it", "sent Bearer [redacted] to it"),
        ("postgresql://ada:hunter22@db/app", "postgresql://ada:[redacted]@db/app"),
        ("https://host/?token=abc&page=2", "https://host/?token=[redacted]&page=2"),
        ("nothing to hide: a key of 3", "nothing to hide: a key of 3"),
    ],
)
def test_values_after_such_names_are_hidden_in_texts(text: str, shown: str) -> None:
    assert redacted_text(text) == shown


def test_a_long_text_takes_no_long_time() -> None:
    """An expression that begins anew at each letter would take hours."""
    for text in ("a" * 200_000, "password" * 20_000, "token= " * 20_000, "://" + "a" * 100_000, "-" * 100_000):
        redacted_text(text)


async def test_secrets_of_a_task_are_hidden_wherever_they_occur(engine: Engine) -> None:
    register_kinds(engine)
    async with engine, engine.worker(), client(engine, "read") as http:
        pay = engine.kinds["pay"].with_options(meta={"token": "t-12345", "of": "ada"}, tags=["for DE89-3704-0044"])
        failed = await pay.enqueue("DE89-3704-0044", Card("4111-1111-1111", "Ada"), password="hunter-22", note="gift")
        done = await engine.kinds["login"].enqueue("ada")
        for handle in (failed, done):
            await engine.wait(handle.id, timeout=PATIENCE_SECONDS)
        listed = await http.get("/tasks")
        shown = await http.get(f"/tasks/{failed.id}")
        explained = await http.get(f"/tasks/{failed.id}/explanation")
        assert "cannot pay [redacted]" in answered(explained, 200)["sentence"]
        for response in (listed, shown, explained, await http.get("/status"), await http.get("/audit")):
            for secret in (*SECRETS, "t-12345"):
                assert secret not in response.text
        task = answered(shown, 200)
        assert task["arguments"] == {
            "iban": "[redacted]",
            "card": {"number": "[redacted]", "holder": "Ada"},
            "password": "[redacted]",
            "note": "gift",
        }
        assert task["meta"] == {"token": "[redacted]", "of": "ada"}
        assert task["tags"] == ["for [redacted]"]
        message = "cannot pay [redacted] with [redacted] and [redacted]: gift"
        assert task["errors"][0]["message"] == message
        assert message in task["errors"][0]["traceback"]
        login = answered(await http.get(f"/tasks/{done.id}"), 200)
        assert (login["result"], login["redacted"], login["arguments"]) == (None, ["result"], {"user": "ada"})


async def test_texts_in_arguments_and_numbers_in_errors_are_redacted_too(engine: Engine) -> None:
    @engine.task
    async def connect(url: str, pin: Annotated[int, Secret()]) -> str:
        raise ValueError(f"cannot open {url} with {pin}")

    async with engine, engine.worker(), client(engine, "read") as http:
        handle = await connect.enqueue("postgresql://ada:hunter-22@db/app", 987654)
        await engine.wait(handle.id, timeout=PATIENCE_SECONDS)
        task = answered(await http.get(f"/tasks/{handle.id}"), 200)
        shown = "postgresql://ada:[redacted]@db/app"
        assert task["arguments"] == {"url": shown, "pin": "[redacted]"}
        assert task["errors"][0]["message"] == f"cannot open {shown} with [redacted]"


async def test_results_metadata_and_names_without_the_values_of_hidden_arguments(engine: Engine) -> None:
    @engine.task
    async def check(
        pin: Annotated[int, Secret()], cvv: Annotated[str, Secret()], code: Annotated[str, Secret()], url: str
    ) -> dict[str, Any]:
        return {"first": pin, "all": [cvv, f"{pin}"], code: 1, "text": f"with {code}", "count": 7, "is_paid": True}

    async with engine, engine.worker(), client(engine, "read") as http:
        options: Any = {"meta": {"of": "x1", "for": 42, "customer": 7}, "tags": ["x1", "vip"], "key": "42"}
        handle = await check.with_options(**options).enqueue(42, "x1", "c-4711", "https://shop/c-4711")
        await engine.wait(handle.id, timeout=PATIENCE_SECONDS)
        task = answered(await http.get(f"/tasks/{handle.id}"), 200)
        assert task["arguments"]["url"] == "https://shop/[redacted]"
        assert task["result"] == {
            "first": "[redacted]",
            "all": ["[redacted]", "[redacted]"],
            "[redacted]": 1,
            "text": "with [redacted]",
            "count": 7,
            "is_paid": True,
        }
        assert task["meta"] == {"of": "[redacted]", "for": "[redacted]", "customer": 7}
        assert (task["tags"], task["key"]) == (["[redacted]", "vip"], "[redacted]")


@pytest.mark.parametrize("secret", ["it's", "a\"b'c", "back\\slash", "two\nlines", "p\u00e4ss"])
async def test_a_secret_with_quotes_or_backslashes_is_hidden_in_errors(engine: Engine, secret: str) -> None:
    @engine.task
    async def check(password: str) -> None:
        raise ValueError(f"1 {password} 2 {password!r} 3 {json.dumps(password)} 4 password={password} 5")

    async with engine, engine.worker(), client(engine, "read") as http:
        handle = await check.enqueue(secret)
        await engine.wait(handle.id, timeout=PATIENCE_SECONDS)
        (error,) = answered(await http.get(f"/tasks/{handle.id}"), 200)["errors"]
        words = [word.strip("\"'") for word in error["message"].split()]
        assert words == [
            *("1", "[redacted]", "2", "[redacted]", "3", "[redacted]", "4", "password=[redacted]", "5"),
        ]


async def test_what_is_hidden_cannot_be_searched_for(engine: Engine) -> None:
    """Otherwise a reader would find a secret letter by letter."""
    register_kinds(engine)
    async with engine, client(engine, "read") as http, client(engine, "operate") as operator:
        await engine.kinds["pay"].enqueue("DE89-3704-0044", Card("4111-1111", "Ada"), password="hunter-22", note="gift")
        for text, number in (("gift", 1), ("hunter", 0), ("DE89", 0), ("holder", 1)):
            assert len(answered(await http.get("/tasks", params={"search": text}), 200)["tasks"]) == number, text
        answered(await http.get("/tasks", params={"meta": "token=abc"}), 403)
        for filters in (
            *({"search": "hunter"}, {"title": "hunter"}, {"meta": {"token": "abc"}}),
            *({"tag": "hunter-22"}, {"key": "hunter-22"}, {"meta": {"note": "hunter-22"}}),
        ):
            body = {"filter": filters, "dry_run": True}
            answered(await operator.post("/tasks/cancel", json=body), 403)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("search", "hunter-2", "hunter-3"),
        ("title", "hunter-2", "hunter-3"),
        ("tag", "hunter-22", "hunter-33"),
        ("key", "hunter-22", "hunter-33"),
        ("meta", "of=hunter-22", "of=hunter-33"),
    ],
)
async def test_a_right_guess_of_a_secret_is_answered_like_a_wrong_one(
    engine: Engine, name: str, right: str, wrong: str
) -> None:
    @engine.task(title="for {password}")
    async def enter(user: str, password: str) -> None: ...

    @engine.task(title="for {user}")
    async def leave(user: str) -> None: ...

    async with engine, client(engine, "read") as http, client(engine, "admin") as admin:
        options: Any = {"tags": ["hunter-22"], "meta": {"of": "hunter-22"}}
        for user in ("ada", "bob", "eve"):
            key: Any = {"key": "hunter-22"} if user == "bob" else {}
            await enter.with_options(**options, **key).enqueue(user, "hunter-22")
        for limit in (1, 2, 3, 100):
            guesses = [await http.get("/tasks", params={name: guess, "limit": limit}) for guess in (right, wrong)]
            first, second = (answered(guess, 200) for guess in guesses)
            assert first == second == {"tasks": [], "next": None, "is_cut": False}
        assert answered(await admin.get("/tasks", params={name: right}), 200)["tasks"], "admin looks at everything"
        open_text = {"search": "hunter-22", "title": "hunter-22"}.get(name, right)
        await leave.with_options(**options, key="hunter-22").enqueue("hunter-22")
        (found,) = answered(await http.get("/tasks", params={name: open_text}), 200)["tasks"]
        assert found["kind"] == "leave", "what is not hidden is found"


async def test_a_search_of_visible_values_goes_on_page_by_page(engine: Engine) -> None:
    register_kinds(engine)
    async with engine, client(engine, "read") as http:
        greet = engine.kinds["greet"]
        wanted = [(await greet.enqueue("ada")).id for _ in range(2)]
        await greet.enqueue_many([("bob",) for _ in range(SEARCHED_PAGES + 5)])
        wanted.append((await greet.enqueue("ada")).id)
        query: dict[str, Any] = {"search": "ada", "limit": 1}
        found, cuts = [], 0
        while True:
            page = answered(await http.get("/tasks", params=query), 200)
            found += [task["id"] for task in page["tasks"]]
            cuts += page["is_cut"]
            if page["next"] is None:
                break
            query["after"] = page["next"]
        assert found == wanted[::-1]
        assert cuts == 1


async def test_where_the_code_is_not_imported_arguments_and_results_are_hidden(sqlite_url: str) -> None:
    application, server = Engine(sqlite_url), Engine(sqlite_url)
    register_kinds(application)
    async with application, server, client(server, "read") as http:
        task = await application.kinds["greet"].enqueue("ada-lovelace")
        await application.schedules.create("hourly", application.kinds["greet"].call("grace-hopper"), every="1h")
        shown = answered(await http.get(f"/tasks/{task.id}"), 200)
        assert (shown["arguments"], shown["result"], shown["redacted"]) == (None, None, ["arguments"])
        assert shown["title"] == "Greet [redacted]"
        (schedule,) = answered(await http.get("/schedules"), 200)["schedules"]
        assert schedule["arguments"] is None
        for response in (await http.get("/tasks"), await http.get("/schedules/hourly")):
            assert "ada-lovelace" not in response.text
            assert "grace-hopper" not in response.text
        await server.stop()
        await application.stop()


def test_a_title_made_of_a_secret_is_not_shown_in_events(engine: Engine) -> None:
    @engine.task(title="for {password}")
    async def bad(password: str) -> None: ...

    @engine.task(title="for {name}")
    async def good(name: str, password: str = "") -> None: ...

    redactor = Redactor(engine.kinds)
    assert redactor.title("bad", "for hunter22") is None
    assert redactor.title("good", "for ada") == "for ada"
    assert redactor.title("elsewhere", "for ada") is None
