"""Mistakes with providers, servers, limits, rates and hooks: refused where they are made, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from synergon import ConfigurationError, Engine, Health, OptionError, Rate, Server

Mistake = Callable[[Any], Any]
"""What is done with an engine, and should not be."""


def with_task(**options: Any) -> Mistake:
    """A task with these options."""

    def make(engine: Engine) -> Any:
        async def work(customer: str) -> None: ...

        return engine.task(**options)(work)

    return make


def twice(engine: Engine) -> None:
    engine.provider("gpu")
    engine.provider("gpu")


def one_server_for_two(engine: Engine) -> None:
    engine.limit("http://elsewhere", 2)
    engine.provider("chat", servers={"http://gpu1/": 2})
    engine.provider("images", servers=["http://GPU1"])


def server_without_provider(engine: Engine) -> None:
    @engine.task
    async def lonely(server: Server) -> None: ...


def limit_declared_twice(engine: Engine) -> None:
    engine.limit("license", 2)
    engine.limit("license", 3)


MISTAKES: dict[str, tuple[Mistake, str]] = {
    "negative capacity": (
        lambda e: e.provider("p", servers={"a": -1}),
        "capacity of 'a' must be a whole number from 0",
    ),
    "capacity in words": (lambda e: e.provider("p", servers={"a": "two"}), "capacity of 'a' must be a whole number"),
    "capacity with a point": (
        lambda e: e.provider("p", servers={"a": 1.5}),
        "must be a whole number from 0 on, or None",
    ),
    "capacity that is a yes": (lambda e: e.provider("p", servers={"a": True}), "must be a whole number from 0 on"),
    "huge capacity": (
        lambda e: e.provider("p", servers={"a": 2**31}),
        "capacity of 'a' must be at most 2147483647, or None for no limit, got 2147483648",
    ),
    "huge slots": (
        lambda e: e.provider("p", servers=["a"], slots=10**30),
        "provider 'p': slots must be at most 100000, got 1000",
    ),
    "negative capacity of all": (
        lambda e: e.provider("p", servers=["a"], capacity=-1),
        "capacity must be a whole number",
    ),
    "negative limit": (lambda e: e.limit("license", -1), "limit 'license' must be a whole number from 0 on, or None"),
    "huge limit": (lambda e: e.limit("license", 2**40), "limit 'license' must be at most 2147483647, or None"),
    "limit in words": (lambda e: e.limit("license", "many"), "limit 'license' must be a whole number from 0 on"),
    "prefix with a space": (lambda e: e.limit("two words", 1), "a limit must be a URL, a host or another word"),
    "prefix without a host": (lambda e: e.limit("http://", 1), "a limit must name a host, got 'http://'"),
    "prefix with a bad port": (lambda e: e.limit("http://host:port/v1", 1), "a limit has a port that is none"),
    "prefix that is no text": (lambda e: e.limit(5, 1), "a limit must be a URL, a host or another word"),
    "name of a kind's limit": (lambda e: e.limit("kind:work", 1), "is the name of a kind's own limit; set it with"),
    "limit declared twice": (limit_declared_twice, "'license' is declared as 2 and as 3; declare it once"),
    "one string for servers": (lambda e: e.provider("p", servers="http://a"), "servers must be a dict of addresses"),
    "server with a space": (lambda e: e.provider("p", servers=["a b"]), "a server's address must be a URL, a host"),
    "server named twice": (
        lambda e: e.provider("p", servers=["a", "a"]),
        "named twice; name it once and give it a capacity",
    ),
    "servers that differ in their query": (
        lambda e: e.provider("p", servers=["http://a/v1?one", "http://a/v1?two"]),
        "are the same server; name it once and give it a capacity",
    ),
    "two providers of one name": (twice, "two providers are named 'gpu'; give one of them another name"),
    "one server of two providers": (
        one_server_for_two,
        "providers 'chat' and 'images' both name the server 'http://gpu1', and each would give it its full capacity; "
        "write engine.limit('http://gpu1', ...) above them, which counts the tasks of both, or take it from one of "
        "them",
    ),
    "hook of a provider that is misspelt": (
        lambda e: e.provider("p", on_sucess=print),
        "provider 'p' has no option 'on_sucess'; did you mean 'on_success'?",
    ),
    "option of a provider that is misspelt": (
        lambda e: e.provider("p", server=["a"]),
        "provider 'p' has no option 'server'; did you mean 'servers'?",
    ),
    "unknown option of a provider": (
        lambda e: e.provider("p", colour=7),
        "it takes capacity, health, on_complete, on_failure, on_start, on_success, servers, slots, timeout",
    ),
    "hook of a provider that is no function": (
        lambda e: e.provider("p", on_start=5),
        "on_start must be a function, got 5",
    ),
    "hook of a kind that is no function": (
        with_task(on_failure="log it"),
        "on_failure must be a function, got 'log it'",
    ),
    "health that is none": (lambda e: e.provider("p", health=5), "health must be a Health, or None for none, got 5"),
    "no slots for a provider": (
        lambda e: e.provider("p", slots=0),
        "provider 'p': slots must be a whole number from 1 on, got 0",
    ),
    "slots in words": (lambda e: e.provider("p", slots="two"), "slots must be a whole number from 1 on, got 'two'"),
    "name of a provider": (lambda e: e.provider("two words"), "two words"),
    "timeout of a provider": (lambda e: e.provider("p", timeout=-1), "timeout"),
    "limit that nobody declared": (with_task(limits=["license"]), "names the limit 'license', which is not declared"),
    "limits that are one text": (with_task(limits="license"), "limits must be a list of names, got 'license'"),
    "limit without keys": (with_task(limit=2), "limit says how many of each key may run; give limit_by too"),
    "keys without a limit": (
        with_task(limit_by="{customer}"),
        "limit_by makes a key for each task; give limit or rate",
    ),
    "key of no argument": (
        with_task(limit_by="{order}", limit=1),
        "asks for 'order', which is no argument of the task",
    ),
    "key without a name": (with_task(limit_by="all", limit=1), "names no argument, got 'all'"),
    "key that is no template": (with_task(limit_by="{customer", limit=1), "is no template"),
    "key that is a number": (with_task(limit_by=5, limit=1), "must be a function or a template"),
    "rate that is a number": (with_task(rate=10), 'rate must be a Rate, like Rate(600, per="1m"), got 10'),
    "negative limit of a kind": (
        with_task(max_running_global=-1),
        "max_running_global must be a whole number from 0 on",
    ),
    "rate of nothing": (lambda _: Rate(0), "Rate count must be a whole number from 1 on, got 0"),
    # Wrong on purpose.
    "rate with a point": (lambda _: Rate(1.5), "Rate count must be a whole number from 1 on, got 1.5"),  # type: ignore[arg-type]
    "rate in no time": (lambda _: Rate(1, per=0), "Rate per must be"),
    "rate with no burst": (lambda _: Rate(1, burst=0), "Rate burst must be a whole number from 1 on, got 0"),
    "health of nothing": (lambda _: Health(failures=0), "Health failures must be a whole number from 1 on, got 0"),
    "no rest": (lambda _: Health(backoff=0), "Health backoff must be"),
    "negative cap": (lambda _: Health(cap=-1), "Health cap must be"),
    "rate of no failures": (lambda _: Health(rate=0), "Health rate must be a share above 0 and up to 1, or None"),
    "rate above one": (lambda _: Health(rate=20), "Health rate must be a share above 0 and up to 1, or None"),
    "window of nothing": (lambda _: Health(window=0), "Health window must be a whole number from 1 to 62, got 0"),
    "window of too much": (lambda _: Health(window=63), "Health window must be a whole number from 1 to 62, got 63"),
    "probe that is no coroutine": (
        lambda _: Health(probe=print),  # type: ignore[arg-type]
        "Health probe must be an `async def` function of a Server",
    ),
    "probe without time": (lambda _: Health(probe_timeout=0), "Health probe_timeout must be"),
    "server that is a dict": (
        lambda engine: engine.provider("gpu", servers=[{"url": "http://a", "capacity": 2}]),
        "provider 'gpu': a server is an address, like 'http://gpu1:8000', got {'url'",
    ),
    "server outside a provider": (server_without_provider, "a Server"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_an_invalid_declaration_raises_where_it_is_made(what: str) -> None:
    make, said = MISTAKES[what]
    with pytest.raises(ConfigurationError) as refused:
        make(Engine("memory://"))
    assert said in str(refused.value)


async def test_unknown_limits_and_providers_cannot_be_changed(engine: Engine) -> None:
    engine.limit("license", 2)
    engine.provider("gpu", servers=["a"])
    async with engine:
        with pytest.raises(OptionError, match="there is no limit 'licence'; declared are: license"):
            await engine.set_limit("licence", 3)
        with pytest.raises(OptionError, match="there is no limit 'kind:work'"):
            await engine.set_limit("kind:work", 3)
        with pytest.raises(OptionError, match="there is no provider 'cpu'"):
            await engine.set_servers("cpu", ["a"])
        with pytest.raises(OptionError, match="there is no node 'nobody'; registered are: none"):
            await engine.cordon("nobody")
        with pytest.raises(OptionError, match="must be a whole number from 0 on"):
            await engine.set_limit("license", -1)
        with pytest.raises(OptionError, match="must be at most 2147483647"):
            await engine.set_limit("license", 2**40)
        with pytest.raises(OptionError, match="there is no provider 'cpu'"):
            await engine.add_server("cpu", "a")
        with pytest.raises(OptionError, match="provider gpu has no server b; it has a"):
            await engine.close_server("gpu", "b")
        with pytest.raises(OptionError, match="capacity must be"):
            await engine.add_server("gpu", "b", -1)
        with pytest.raises(OptionError, match="capacity of 'b' must be"):
            await engine.set_servers("gpu", {"b": -1})
        assert [(order.verb, order.subject, order.outcome) for order in await engine.audit()] == [
            ("close_server", "gpu", "rejected: provider gpu has no server b; it has a"),
            ("add_server", "cpu", "rejected: no provider of that name"),
            ("cordon", "nobody", "rejected: no node of that id"),
            ("set_servers", "cpu", "rejected: no provider of that name"),
            ("set_limit", "kind:work", "rejected: no limit of that name"),
            ("set_limit", "licence", "rejected: no limit of that name"),
        ]
        assert [limit.value for limit in await engine.limits()] == [2]
        assert [server.address for server in await engine.servers()] == ["a"]
