"""Settings: the code wins over the environment, which wins over pyproject.toml, which wins over the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synergon import Engine, OptionError, Resources, Retention, SynergonError
from synergon.options.settings import UNSET, load


def test_every_setting_has_a_sensible_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Engine().settings
    assert settings.url == "sqlite:///synergon.db"
    assert (settings.concurrency, settings.threads, settings.queues, settings.timeout) == (500, 64, None, 1800.0)
    assert (settings.lease, settings.sweep, settings.grace) == (30.0, None, 30.0)
    assert settings.retention == Retention(succeeded="7d", failed="30d", cancelled="7d")
    assert settings.name
    assert set(settings.sources.values()) == {"default"}
    assert list(tmp_path.iterdir()) == [], "making an engine touches nothing"


ENVIRONMENT: list[tuple[str, str, Any]] = [
    ("url", "memory://from-outside", "memory://from-outside"),
    ("name", "worker-7", "worker-7"),
    ("concurrency", "5", 5),
    ("threads", "7", 7),
    ("queues", "mail, reports", {"mail": None, "reports": None}),
    ("queues", "mail=10, video = 2,reports", {"mail": 10, "video": 2, "reports": None}),
    ("timeout", "500ms", 0.5),
    ("timeout", "10m", 600.0),
    ("timeout", "none", None),
    ("lease", "3", 3.0),
    ("sweep", "250ms", 0.25),
    ("grace", "1.5s", 1.5),
    ("grace", "None", None),
    ("retention", "1h", Retention(succeeded=3600.0, failed=3600.0, cancelled=3600.0)),
    ("child_processes", "3", 3),
    ("child_tasks", "10", 10),
    ("child_memory", "1GiB", 2**30),
    ("child_memory", "none", None),
    ("resources", "cpu=8, ram=16GiB, gpu=0.5, license=2", Resources(cpu=8, ram=2**34, gpu=0.5, custom={"license": 2})),
    ("labels", "zone:eu, gpu:a100", frozenset({"zone:eu", "gpu:a100"})),
    ("listen", "127.0.0.1:7700", "127.0.0.1:7700"),
    ("health_listen", "127.0.0.1:9090", "127.0.0.1:9090"),
    ("health_listen", "off", None),
    ("imports", "json, json.decoder", ("json", "json.decoder")),
    ("advertise", "http://node.example.com:7700", "http://node.example.com:7700"),
]


@pytest.mark.parametrize(("name", "text", "value"), ENVIRONMENT)
def test_every_setting_has_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any
) -> None:
    monkeypatch.setenv(f"SYNERGON_{name.upper()}", text)
    settings = Engine(**({} if name == "url" else {"url": "memory://"})).settings  # type: ignore[arg-type]  # they fit
    assert getattr(settings, name) == value
    assert settings.sources[name] == f"$SYNERGON_{name.upper()}"


def test_every_setting_of_the_engine_is_in_that_list() -> None:
    assert {name for name, _, _ in ENVIRONMENT} == set(load({}).sources)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("concurrency", "many"),
        ("concurrency", "0"),
        ("concurrency", "-1"),
        ("concurrency", "²"),
        ("concurrency", "1.5"),
        ("threads", "0"),
        ("threads", "few"),
        ("lease", "soon"),
        ("lease", "0.1"),
        ("lease", "2h"),
        ("timeout", "0"),
        ("timeout", "ten minutes"),
        ("sweep", "0"),
        ("sweep", "-1s"),
        ("grace", "-1"),
        ("queues", ",mail"),
        ("queues", "mail=many"),
        ("queues", "mail=0"),
        ("queues", "mail=1,mail=2"),
        ("queues", "mail="),
        ("queues", "=3"),
        ("retention", "long"),
        ("child_processes", "0"),
        ("child_tasks", "x"),
        ("child_memory", "much"),
        ("resources", "cpu"),
        ("resources", "cpu=many"),
        ("resources", "cpu=-1"),
        ("resources", "cpu=1, cpu=2"),
        ("resources", "ram=2 parsecs"),
        ("resources", "=1"),
        ("labels", "zone eu"),
        ("labels", "zone:eu,,gpu"),
        ("listen", "7700"),
        ("listen", "http://127.0.0.1:0"),
        ("listen", "127.0.0.1:65536"),
        ("listen", "127.0.0.1:²"),
        ("health_listen", "9090"),
        ("health_listen", ":9090"),
        ("health_listen", "auto"),
        ("health_listen", "127.0.0.1:65536"),
        ("advertise", "10.0.0.5:7700"),
        ("advertise", "http://:7700"),
        ("advertise", "http://node:port"),
        ("advertise", "https://node/path?token=1"),
        ("advertise", "https://node/path#part"),
        ("url", "app.db"),
        ("name", "a\nb"),
    ],
)
def test_a_variable_with_a_value_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(f"SYNERGON_{name.upper()}", text)
    with pytest.raises(OptionError, match=rf"\$SYNERGON_{name.upper()}"):
        Engine(**({} if name == "url" else {"url": "memory://"}))  # type: ignore[arg-type]  # they fit


@pytest.mark.parametrize("url", ["mysql://x", "postgresql://x?schema=Bad", "sqlite:///"])
def test_a_url_from_the_environment_that_no_store_has_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("SYNERGON_URL", url)
    with pytest.raises(SynergonError):
        Engine()


def test_an_empty_variable_is_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNERGON_CONCURRENCY", "")
    assert Engine("memory://").settings.concurrency == 500


def test_the_code_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[tool.synergon]\nconcurrency = 1\nlease = "1s"\ntimeout = "1m"\ngrace = "none"\napp = "app:engine"\n'
    )
    monkeypatch.setenv("SYNERGON_LEASE", "2s")
    monkeypatch.setenv("SYNERGON_TIMEOUT", "2m")
    settings = load({"timeout": "3m", "sweep": UNSET}, pyproject=file)
    assert (settings.concurrency, settings.sources["concurrency"]) == (1, str(file))
    assert (settings.lease, settings.sources["lease"]) == (2.0, "$SYNERGON_LEASE")
    assert (settings.timeout, settings.sources["timeout"]) == (180.0, "code")
    assert (settings.sweep, settings.sources["sweep"]) == (None, "default")
    assert settings.grace is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.synergon]\nconcurency = 1\n", "has no setting 'concurency'; it takes app, url"),
        ("[tool.synergon]\nconcurrency = 0\n", "concurrency must be a whole number from 1 on, got 0"),
        ("[tool.synergon\n", "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=said) as error:
        load({}, pyproject=file)
    assert str(file) in str(error.value)


def test_the_settings_of_a_worker_are_those_of_its_engine_unless_it_says_otherwise() -> None:
    engine = Engine("memory://", concurrency=5, grace=1, queues=["a"])
    settings = engine.worker(concurrency=7, queues=["b"])._settings
    assert (settings.concurrency, settings.grace, settings.queues) == (7, 1.0, {"b": None})
    assert engine.settings.concurrency == 5


def test_the_settings_show_no_password() -> None:
    engine = Engine("postgresql://kim:hunter2@host/db?sslpassword=hunter2")
    assert "hunter2" not in repr(engine.settings) + repr(engine)
    assert "url='postgresql://kim@host/db'" in repr(engine.settings)


def test_an_advertised_address_with_a_password_is_rejected_without_showing_it() -> None:
    with pytest.raises(OptionError, match="no password") as caught:
        Engine("memory://", advertise="http://kim:hunter2@node:7700")
    assert "hunter2" not in str(caught.value)
