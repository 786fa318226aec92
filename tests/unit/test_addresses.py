"""Which addresses are the same, and which a prefix covers."""

from __future__ import annotations

import pytest

from synergon import Engine
from synergon.errors import OptionError
from synergon.options.addresses import covers, normal_address, normal_prefix, prefixes_of


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("http://Server1/", "http://server1"),
        ("HTTPS://api.example.com:443/v1/?key=1#top", "https://api.example.com/v1"),
        ("http://server1:80", "http://server1"),
        ("http://server1:8080/Models/", "http://server1:8080/Models"),
        ("gpu-1:8080", "gpu-1:8080"),
        ("GPU-1", "gpu-1"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://gpu?slot=1", "http://gpu"),
        ("http://Ada:Secret@GPU:80/x", "http://Ada:Secret@gpu/x"),
    ],
)
def test_an_address_has_one_way_to_be_written(given: str, normal: str) -> None:
    assert normal_address(given) == normal
    assert normal_address(normal) == normal


@pytest.mark.parametrize(
    "given",
    [
        "",
        " ",
        "http://",
        "https:///v1",
        "://x",
        "a b",
        "http://host:port",
        "gpu:99999",
        7,
        None,
        "x" * 501,
        "ü",
        "http:/gpu",
        "http://gpu:",
        ":80",
        "http://:80",
        "http://ada@",
    ],
)
def test_what_is_no_address_is_refused(given: object) -> None:
    with pytest.raises(OptionError, match="address"):
        normal_address(given)


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("License", "license"),
        ("HTTPS://API.example.com/V1/?key=1", "https://api.example.com/V1"),
        ("https://api.example.com:443", "https://api.example.com:443"),
        ("ada@example.com", "ada@example.com"),
    ],
)
def test_a_prefix_has_one_way_to_be_written(given: str, normal: str) -> None:
    assert normal_prefix(given) == normal
    assert normal_prefix(normal) == normal


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("https://ada:secret@api.example.com", "leave out the part before the @"),
        ("https://*.example.com", "no wildcards"),
        ("gpu-*", "no wildcards"),
        ("http:/api.example.com", "two slashes"),
        ("https://", "name a host"),
        (":443", "name a host"),
    ],
)
def test_a_prefix_that_could_cover_nothing_is_refused(given: str, advice: str) -> None:
    with pytest.raises(OptionError, match=advice):
        Engine("memory://").limit(given, 1)


@pytest.mark.parametrize(
    ("prefix", "address", "expected"),
    [
        ("https://api.example.com", "https://api.example.com", True),
        ("https://api.example.com", "https://api.example.com/v1", True),
        ("https://api.example.com", "https://api.example.com:8443/v1", True),
        ("https://api.example.com/v1", "https://api.example.com/v1/chat", True),
        ("https://api.example.com/v1", "https://api.example.com/v10", False),
        ("https://api.example.com/v1", "https://api.example.com/v1:batch", False),
        ("http://server1", "http://server10", False),
        ("http://server1", "http://server1.example.com", False),
        ("http://server1", "https://server1", False),
        ("server1", "https://server1/x", True),
        ("server1:80", "server1:8080", False),
        ("server1", "server1:8080", True),
        ("https://api.example.com/v1", "https://api.example.com", False),
        ("https://api.example.com:443", "https://api.example.com/v1", True),
        ("https://api.example.com:443", "https://api.example.com:8443", False),
        ("api.example.com:443", "https://api.example.com", True),
        ("api.example.com:443", "http://api.example.com", False),
        ("api.example.com:443/v1", "https://api.example.com/v1/chat", True),
        ("https://api.example.com", "https://ada:secret@api.example.com/v1", True),
        ("api.example.com", "https://ada@api.example.com", True),
        ("ada@example.com", "ada@example.com", True),
        ("http://[::1]:80", "http://[::1]", True),
        ("http://[::1]", "http://[::1]:8080", True),
    ],
)
def test_a_prefix_ends_at_a_boundary(prefix: str, address: str, expected: bool) -> None:
    assert covers(prefix, address) is expected


@pytest.mark.parametrize(
    ("address", "prefixes"),
    [
        ("gpu", {"gpu"}),
        ("gpu:80/x", {"gpu", "gpu:80", "gpu:80/x"}),
        (
            "http://ada@host/v1/x",
            {
                "http://ada@host/v1/x",
                *("http://host", "http://host/v1", "http://host/v1/x"),
                *("http://host:80", "http://host:80/v1", "http://host:80/v1/x"),
                *("host", "host/v1", "host/v1/x", "host:80", "host:80/v1", "host:80/v1/x"),
            },
        ),
    ],
)
def test_the_prefixes_that_cover_an_address_can_be_told(address: str, prefixes: set[str]) -> None:
    assert prefixes_of(address) == prefixes
    assert all(covers(prefix, address) for prefix in prefixes)
