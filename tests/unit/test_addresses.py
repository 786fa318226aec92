"""Which addresses are the same, and which a prefix covers."""

from __future__ import annotations

import pytest

from synergon.addresses import covers, normal_address
from synergon.errors import OptionError


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
    ],
)
def test_an_address_has_one_way_to_be_written(given: str, normal: str) -> None:
    assert normal_address(given) == normal
    assert normal_address(normal) == normal


@pytest.mark.parametrize(
    "given",
    ["", " ", "http://", "https:///v1", "://x", "a b", "http://host:port", "gpu:99999", 7, None, "x" * 501, "ü"],
)
def test_what_is_no_address_is_refused(given: object) -> None:
    with pytest.raises(OptionError, match="address"):
        normal_address(given)


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
    ],
)
def test_a_prefix_ends_at_a_boundary(prefix: str, address: str, expected: bool) -> None:
    assert covers(prefix, address) is expected
