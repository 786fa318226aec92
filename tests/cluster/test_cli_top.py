"""`synergon top`, `--watch`, completion, and the examples of the help."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console
from tests.cluster.cli_support import COMMAND, Shell, quickly
from tests.cluster.terminal import ENTERED, LEFT, on_terminal

from synergon import Engine, State
from synergon.cli.examples import EXAMPLES
from synergon.cli.main import UsageError, command_tree
from synergon.cli.screen import ESCAPE
from synergon.cli.top import Top
from synergon.cli.top_tables import Rates, heights, read_cluster


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell.in_folder(tmp_path)
    made.enqueue("greet", number=3, name="Ada")
    return made


# ------------------------------------------------------------ top


def test_top_without_a_terminal_prints_one_screen_and_ends(shell: Shell) -> None:
    finished = quickly(shell, "top", "--app", "app")
    assert finished.code == 0
    assert "0 nodes  3 ready  0 running" in finished.out
    assert "tasks are ready, and no worker runs" in finished.out
    assert max(map(len, finished.out.splitlines())) <= 80
    assert ENTERED not in finished.out


def test_top_rejects_a_view_that_does_not_exist(shell: Shell) -> None:
    finished = quickly(shell, "top", "--view", "disks", "--app", "app")
    assert (finished.code, finished.err) == (
        2,
        "error: --view is one of all, nodes, queues, kinds, tasks, got 'disks'\n",
    )


def test_top_obeys_keys_and_leaves_the_terminal_as_it_was(shell: Shell) -> None:
    with on_terminal(shell, "top", "--app", "app", "--interval", "0.2") as terminal:
        before = terminal.settings
        terminal.until_shows(r"3 ready")
        assert ENTERED in terminal.text
        assert terminal.settings != before
        shell.enqueue("greet", number=2, name="Bo")
        terminal.until_shows(r"5 ready")
        terminal.until_shows("filter: gre_", after=terminal.press("/gre"))
        terminal.until_shows("filter: gre  1 all", after=terminal.press("\r"))
        terminal.until_shows("by queue", after=terminal.press("3s"))
        after = terminal.resize(60, 12)
        terminal.until_shows("5 ready", after=after)
        terminal.press("q")
        assert terminal.ended() == 0
        terminal.until_shows(r"\x1b\[\?1049l")
        assert terminal.settings == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_top_leaves_the_terminal_as_it_was_when_a_signal_ends_it(
    shell: Shell, number: signal.Signals, code: int
) -> None:
    with on_terminal(shell, "top", "--app", "app") as terminal:
        before = terminal.settings
        terminal.until_shows("3 ready")
        terminal.process.send_signal(number)
        assert terminal.ended() == code
        terminal.until_shows(r"\x1b\[\?1049l")
        assert terminal.settings == before


@pytest.fixture
async def engine() -> Any:
    made = Engine("memory://")

    @made.task
    async def greet(name: str) -> str:
        return name

    @made.task(queue="mail")
    async def send(to: str) -> None: ...

    async with made:
        yield made


def picture(top: Top, *, columns: int = 80, rows: int = 24) -> list[str]:
    console = Console(width=columns, height=rows, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(top.draw(rows))
    return captured.get().splitlines()


async def test_a_filter_and_a_sort_change_the_rows(engine: Engine) -> None:
    await engine.enqueue([engine.call("greet", name="Ada"), *[engine.call("send", to="x")] * 2])
    top = Top("queues")
    top.add(await read_cluster(engine))
    names = [line.split()[0] for line in picture(top) if line.startswith(("default", "mail"))]
    assert names == ["default", "mail"]
    for key in "ss":
        top.press(key)
    assert top.sort["queues"] == "ready"
    names = [line.split()[0] for line in picture(top) if line.startswith(("default", "mail"))]
    assert names == ["mail", "default"]
    for key in ("/", "M", "A", "\n"):
        top.press(key)
    lines = picture(top)
    assert not [line for line in lines if line.startswith("default")]
    assert [line for line in lines if line.startswith("mail")]
    top.press(ESCAPE)
    assert [line for line in picture(top) if line.startswith("default")]
    assert top.press("q") is False


async def test_hostile_text_is_escaped(engine: Engine) -> None:
    top = Top("tasks", "\x1b[2J")
    top.add(await read_cluster(engine))
    assert "\x1b" not in "".join(picture(top))


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10), (200, 60), (20, 3)])
async def test_the_picture_fits_every_size(engine: Engine, columns: int, rows: int) -> None:
    await engine.enqueue(
        [
            engine.call(
                "send",
                to="x",
            )
            for _ in range(50)
        ]
    )
    async with engine.worker(concurrency=5):
        top = Top()
        top.add(await read_cluster(engine))
        lines = picture(top, columns=columns, rows=rows)
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns


async def test_rates_are_differences_between_readings(engine: Engine) -> None:
    rates = Rates()
    rates.add(await read_cluster(engine))
    assert rates.ended == {}
    handles = await engine.enqueue([engine.call("greet", name="Ada")] * 10)
    async with engine.worker():
        for handle in handles:
            await handle.result(timeout=10)
        reading = await read_cluster(engine)
    rates.add(reading)
    assert reading.total(State.SUCCEEDED) == 10
    assert rates.ended["default"] > 0
    rates.add(reading)
    assert rates.ended["default"] == 0


def test_lines_are_divided_between_tables() -> None:
    assert heights([3, 5, 4], 20) == [3, 5, 4]
    assert heights([3, 50, 40], 23) == [3, 10, 10]
    assert heights([3, 3], 0) == [0, 0]


# ------------------------------------------------------------ --watch


def test_watch_shows_changes_on_a_terminal_until_q(shell: Shell) -> None:
    with on_terminal(shell, "queues", "--watch", "0.1", "--app", "app") as terminal:
        before = terminal.settings
        terminal.until_shows("default +0 +3 ")
        shell.enqueue("greet", name="Bo")
        terminal.until_shows("default +0 +4 ")
        terminal.press("q")
        assert terminal.ended() == 0
        terminal.until_shows(r"\x1b\[\?1049l")
        assert terminal.settings == before
        assert terminal.text.count(LEFT) == 1


def test_watch_without_a_terminal_prints_the_list_again(shell: Shell) -> None:
    with shell.start("tasks", "list", "--watch", "0.1", "--limit", "1", "--json", "--app", "app") as started:
        started.until_says('"id":3,', times=2)
        shell.enqueue("greet", name="Bo")
        started.until_says('"id":4,', times=2)
        started.signal(signal.SIGINT)
        assert started.ended() == 130


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
        return
    for name, other in below.items():
        yield from leaves(other, (*words, name))


COMMANDS = {" ".join(words): command for words, command in leaves(command_tree()) if not command.hidden}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.endswith("list") or name == "audit"])
def test_every_list_can_be_watched(name: str) -> None:
    for given, seconds in (("--watch", 2.0), ("--watch 5", 5.0), ("--watch=0.5 --json", 0.5), ("--watch --json", 2.0)):
        context = COMMANDS[name].make_context(name, given.split())
        assert (context.params["watch"], context.params["as_json"]) == (seconds, "--json" in given)
    with pytest.raises(UsageError):
        COMMANDS[name].make_context(name, ["--watch", "0"])


# ------------------------------------------------------------ examples and completion


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_it_accepts(name: str) -> None:
    assert name in EXAMPLES, f"`synergon {name}` has no example in cli/examples.py"
    command = COMMANDS[name]
    shown = command.get_help(typer.Context(command, info_name=name))
    for example in EXAMPLES[name]:
        assert f"synergon {example}"[:60] in shown
        words = shlex.split(example)
        own = name.split()
        assert words[: len(own)] == own
        command.make_context(name, words[len(own) :])


def test_every_example_belongs_to_a_command() -> None:
    assert not set(EXAMPLES) - set(COMMANDS)


def completed(shell: Shell, words: str) -> set[str]:
    finished = shell.run(
        _SYNERGON_COMPLETE="complete_bash", COMP_WORDS=f"synergon {words}", COMP_CWORD=str(words.count(" ") + 1)
    )
    assert finished.err == ""
    return set(finished.out.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("queu", {"queues"}),
        ("tasks list --state s", {"scheduled", "succeeded"}),
        ("tasks list --app app --kind gr", {"greet"}),
        ("queues pause --app app ", {"default"}),
        ("queues pause --app no_such_module ", set()),
    ],
)
def test_names_are_completed(shell: Shell, words: str, offered: set[str]) -> None:
    assert completed(shell, words) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_for_the_shell_is_shown_and_installed(shell: Shell) -> None:
    command = shlex.join(COMMAND)
    environment = shell.environment | {"HOME": str(shell.folder)}
    script = f"{command} --show-completion; {command} --install-completion; true"  # not the last one: bash stays
    done = subprocess.run(["bash", "-c", script], cwd=shell.folder, env=environment, capture_output=True, text=True)
    assert "_SYNERGON_COMPLETE=complete_bash" in done.stdout, done
    assert (shell.folder / ".bash_completions" / "synergon.sh").is_file()
    assert "synergon.sh" in (shell.folder / ".bashrc").read_text()
