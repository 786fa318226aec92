"""Users of other task queues write their names, and are told ours."""

from __future__ import annotations

from typing import Any

import pytest

from synergon import CallOptions, Engine, OptionError


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("eta", "write run_at="),
        ("countdown", "write delay="),
        ("max_retries", "write retry="),
        ("time_limit", "write timeout="),
        ("rate_limit", "write rate=Rate"),
        ("bind", "a parameter `ctx: Context`"),
        ("expires", "write expires_in="),
    ],
)
def test_an_option_of_another_queue_is_rejected_with_ours(engine: Engine, name: str, advice: str) -> None:
    @engine.task
    async def greet() -> None: ...

    options: dict[str, Any] = {name: 1}
    with pytest.raises(OptionError, match=advice):
        greet.with_options(**options)
    with pytest.raises(OptionError, match=advice):
        engine.task(**options)(print)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("apply_async", r"greet\.with_options\(\.\.\.\)\.enqueue\(\.\.\.\)"),
        ("send", r"greet\.enqueue"),
        ("s", r"greet\.call"),
    ],
)
def test_a_method_of_another_queue_is_an_attribute_error_with_ours(engine: Engine, name: str, advice: str) -> None:
    @engine.task
    async def greet() -> None: ...

    with pytest.raises(AttributeError, match=advice):
        getattr(greet, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        greet.nonsense  # type: ignore[attr-defined]  # noqa: B018


async def test_none_means_not_given(engine: Engine) -> None:
    @engine.task(queue="mail", priority=3)
    async def greet() -> None: ...

    options: dict[str, Any] = dict.fromkeys(CallOptions.__annotations__.keys() - {"timeout"})
    async with engine:
        plain = await (await greet.enqueue()).status()
        given = await (await greet.with_options(**options).enqueue()).status()
    for field in ("queue", "priority", "max_attempts", "key", "tags", "meta", "requirements", "title", "expires_at"):
        assert getattr(given, field) == getattr(plain, field), field


async def test_none_as_timeout_means_no_timeout(engine: Engine) -> None:
    @engine.task(timeout=5)
    async def greet() -> None: ...

    async with engine:
        record = await (await greet.with_options(timeout=None).enqueue()).status()
    assert record.overrides is not None
    assert bytes(record.overrides) == b'{"timeout":-1.0}'
