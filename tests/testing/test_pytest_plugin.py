"""The pytest plugin, in real runs of pytest over the project of a user."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

APP = """
    from synergon import Engine

    engine = Engine("sqlite:////nonexistent/folder/shop.db", imports=["mail"])
"""
MAIL = """
    from app import engine


    @engine.task
    async def send(to: str) -> str:
        return f"sent to {to}"
"""
TESTS = """
    import pytest
    from app import engine
    from mail import send

    from synergon import State


    async def sign_up(address):
        return await send.enqueue(address)


    async def test_a_coroutine(synergon_engine):
        assert synergon_engine is engine
        assert await (await sign_up("Ada")).result() == "sent to Ada"


    @pytest.mark.parametrize("name", ["Ada", "Bob"])
    async def test_parameters_are_passed_on(synergon_engine, name):
        assert len(await engine.tasks()) == 0, "each test has a store of its own"
        await sign_up(name)


    class TestMethods:
        async def test_a_method(self, synergon_tester):
            await sign_up("Ada")
            synergon_tester.assert_enqueued(send, "Ada", count=1)
            (record,) = await synergon_tester.drain()
            assert record.state is State.SUCCEEDED


    def test_a_plain_function(synergon_engine, synergon_clock):
        handle = send.with_options(delay="1h").enqueue_sync("Ada")
        assert handle.status_sync().state is State.SCHEDULED
        synergon_clock.advance("1h")
        assert handle.result_sync() == "sent to Ada"


    class TestElsewhere:
        @pytest.fixture
        def synergon_url(self):
            return "sqlite://"

        async def test_a_worker_runs_tasks(self, synergon_engine):
            handle = await sign_up("Ada")
            async with synergon_engine.worker():
                assert await handle.result(timeout=20) == "sent to Ada"

        def test_the_clock_is_refused(self, synergon_clock):
            pass

        def test_the_tester_is_refused(self, synergon_tester):
            pass


    def test_without_fixtures():
        assert engine.settings.url == "sqlite:////nonexistent/folder/shop.db"
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_DOT_", ".")).write_text(dedent(text))


def run(folder: Path, *options: str) -> tuple[dict[str, str], str]:
    """The outcome of each test, and all output."""
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=120, env={"PYTHONPATH": str(folder)}
    )
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S+?::(\S+)", ended.stdout, re.MULTILINE)
    return {name: outcome for outcome, name in found}, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    folder = tmp_path_factory.mktemp("project")
    ini = """
        [pytest]
        asyncio_mode = auto
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        synergon_engine = app:engine
    """
    write(folder, app_DOT_py=APP, mail_DOT_py=MAIL, test_shop_DOT_py=TESTS, pytest_DOT_ini=ini)
    return run(folder)


def test_the_engine_of_the_project_is_put_on_a_database_of_each_test(outcomes: tuple[dict[str, str], str]) -> None:
    found, output = outcomes
    assert {name for name, outcome in found.items() if outcome == "PASSED"} == {
        "test_a_coroutine",
        "test_parameters_are_passed_on[Ada]",
        "test_parameters_are_passed_on[Bob]",
        "TestMethods::test_a_method",
        "test_a_plain_function",
        "TestElsewhere::test_a_worker_runs_tasks",
        "test_without_fixtures",
    }, output


def test_the_clock_says_where_it_does_not_move(outcomes: tuple[dict[str, str], str]) -> None:
    found, output = outcomes
    assert found["TestElsewhere::test_the_clock_is_refused"] == "ERROR"
    assert "a clock that a test can move exists in memory only, and this test uses sqlite://" in output
    assert "a tester exists in memory only, and this test uses sqlite://" in output
    assert list(found.values()).count("ERROR") == 2


def test_a_project_that_does_not_use_the_plugin_loads_nothing_but_the_plugin(tmp_path: Path) -> None:
    tests = """
        import sys

        def test_first():
            assert "synergon_pytest" in sys.modules
            assert not [name for name in sys.modules if name.partition(".")[0] in ("synergon", "msgspec")]

        def test_without_an_engine(synergon_engine):
            pass
    """
    write(tmp_path, test_it_DOT_py=tests)
    found, output = run(tmp_path, "-p", "no:asyncio")
    assert found == {"test_first": "PASSED", "test_without_an_engine": "ERROR"}, output
    assert "which engine? Set synergon_engine = shop.app:engine among the options of pytest" in output
    assert "Traceback" not in output


def test_the_engine_of_the_command_line_and_of_anyio(tmp_path: Path) -> None:
    """`app` in [tool.synergon] is what `synergon worker` runs. The plugin works with both plugins for coroutines."""
    write(
        tmp_path,
        app_DOT_py=APP,
        mail_DOT_py=MAIL,
        pyproject_DOT_toml='[tool.synergon]\napp = "app"\n[tool.pytest.ini_options]\nsynergon_url = "sqlite://"\n',
        test_it_DOT_py="""
            import pytest
            from mail import send

            @pytest.fixture
            def anyio_backend():
                return "asyncio"

            @pytest.mark.anyio
            async def test_it(synergon_engine):
                assert len(await synergon_engine.tasks()) == 0
                await send.enqueue("Ada")
                assert synergon_engine.settings.url.startswith("sqlite:///")
        """,
    )
    found, output = run(tmp_path, "-p", "no:asyncio")
    assert found == {"test_it": "PASSED"}, output
