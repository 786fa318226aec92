"""URLs of stores: what people see of them holds no password, wherever it was written and however wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from synergon import ConfigurationError, Engine
from synergon.options.store_urls import shown
from synergon.stores.postgres.address import Address

SHOWN = {
    "postgresql://ada:s3cr3t@host:5432/db": "postgresql://ada@host:5432/db",
    "postgresql://ada@host/db?pool=2": "postgresql://ada@host/db?pool=2",
    "postgresql:///db?host=/run/pg&user=ada&password=s3cr3t": "postgresql:///db?host=/run/pg&user=ada",
    "postgresql:///db?password=s3cr3t": "postgresql:///db",
    "postgresql:///db?pass%77ord=s3cr3t&sslpassword=s3cr3t&pool=2": "postgresql:///db?pool=2",
    "postgresql://host:5432/db?user=ada@cloud": "postgresql://host:5432/db?user=ada@cloud",
    "postgresql://ada:s3/s3cr3t@host/db": "postgresql://ada@host/db",
    "postgresql://ada:s3@s3cr3t@host/db": "postgresql://ada@host/db",
    "sqlite:////data/a:b@c.db": "sqlite:////data/a:b@c.db",
    "memory://name": "memory://name",
}


@pytest.mark.parametrize("url", SHOWN)
def test_a_url_is_shown_without_its_passwords(url: str) -> None:
    assert shown(url) == SHOWN[url]


@pytest.mark.parametrize("url", [url for url in SHOWN if url.startswith("postgresql") and "s3" in url])
def test_neither_an_engine_nor_its_store_tells_a_password(url: str) -> None:
    try:
        said = f"{Engine(url)!r} {Address.parse(url).location}"
    except ConfigurationError as error:
        said = str(error)
    assert "s3" not in said
    assert "ada" in said or "user" in said or "ada" not in url


NOT_ESCAPED = [
    "postgresql://ada:s3/cr3t@host/db",
    "postgresql://ada:12/cr3t@host/db",
    "postgresql://ada:s3?cr3t@host/db",
    "postgresql://ada:12#cr3t@host/db",
    "postgresql://ada:s3@cr3t@host/db",
    "postgresql://ada:s3[cr3t@host/db",
    "postgresql://host:s3cr3t/db",
]


@pytest.mark.parametrize("url", NOT_ESCAPED)
def test_a_password_that_tears_the_url_apart_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="escape what is special in the user and the password") as error:
        Engine(url)
    assert "cr3t" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:%2F%40%3A%3F%23@host/db",
        "postgresql://[::1]:5432,other:5433,third/db",
        "postgresql://ada:s3:cr3t@host/db",
        "postgresql://ada@host/a@b",
        "postgres://host",
    ],
)
def test_what_is_escaped_or_needs_no_escape_is_taken(url: str) -> None:
    assert Engine(url).settings.url == url


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:s3cr3t@h/x",
        "ada:s3cr3t@host/db",
        "postgresql:/ada:s3cr3t@host",
        "host=h password=s3cr3t",
        b"a:s3cr3t@h",
    ],
)
def test_a_url_of_no_store_is_refused_without_its_password(url: Any) -> None:
    with pytest.raises(ConfigurationError) as error:
        Engine(url)
    assert "s3cr3t" not in str(error.value)
    assert "postgresql://" in str(error.value)
