"""`synergon health`, and what systemd hears of a worker: real processes."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.cli_support import Shell, quickly, until
from tests.support import free_port

from synergon import State
from synergon.cli.supervisor_health import merged
from synergon.node.health.exposition import text_of

ALIVE = b"WATCHDOG=1"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that receives messages, as systemd does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        yield receiver


def next_message(systemd: socket.socket, *, after: bytes | None = None) -> bytes:
    """The next message that is not `after`."""
    while (message := systemd.recv(100)) == after:
        pass
    return message


def test_health_says_whether_a_worker_is_ready(shell: Shell) -> None:
    address = f"127.0.0.1:{free_port()}"
    finished = quickly(shell, "health", address)
    assert (finished.code, finished.out) == (1, "")
    assert f"no worker answers at {address}" in finished.err
    shell.enqueue("hold")
    with shell.start("worker", "app", "--health-listen", address) as worker:
        worker.until_says("hold has begun")
        assert worker.until_says(f"health is served on http://{address}")
        finished = quickly(shell, "health", address)
        assert (finished.code, finished.out, finished.err) == (0, "ready\n", "")
        assert shell.run("health", "--alive", SYNERGON_HEALTH_LISTEN=address).out == "alive\n"
        worker.signal(signal.SIGTERM)
        until(lambda: "not ready: the worker is stopping" in quickly(shell, "health", address).err)
        assert quickly(shell, "health", address).code == 1
        assert quickly(shell, "health", "--alive", address).code == 0
        (shell.folder / "go").touch()
        assert worker.ended() == 0


def test_a_worker_that_waits_for_its_database_lives_and_is_not_ready(shell: Shell) -> None:
    address, database = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    app = shell.folder / "app.py"
    app.write_text(app.read_text().replace("sqlite:///app.db", f"postgresql://{database}/none"))
    with shell.start("worker", "app", "--health-listen", address) as worker:
        worker.until_says("cannot start yet")
        assert quickly(shell, "health", "--alive", address).code == 0
        finished = quickly(shell, "health", address)
        assert finished.code == 1
        assert "not ready: the worker cannot start yet: " in finished.err
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


def test_the_supervisor_answers_for_all_workers_and_each_worker_for_itself(shell: Shell) -> None:
    port = free_port()
    shell.enqueue("greet", number=20, name="Ada")
    with shell.start("worker", "app", "--processes", "2", "--health-listen", f"127.0.0.1:{port}") as supervisor:
        supervisor.until_says(r"runs \d+ kinds?", times=2)
        until(lambda: shell.counts() == {State.SUCCEEDED: 20})
        for one in (port, port + 1, port + 2):
            assert quickly(shell, "health", f"127.0.0.1:{one}").out == "ready\n"
        until(lambda: finished_in(scrape(port)) == 20)
        samples = scrape(port)
        assert {labels["process"] for _, labels, _ in samples} == {"1", "2"}
        assert [value for name, _, value in samples if name == "synergon_worker_answers"] == [1, 1]
        assert {name for name, labels, _ in samples if labels["process"] == "2"} >= {"synergon_slots", "synergon_ready"}
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_a_worker_that_does_not_answer_is_named_and_leaves_the_metrics_of_the_others() -> None:
    text = '# HELP a_total x\n# TYPE a_total counter\na_total{kind="k"} 3.0\n'
    parsed = list(text_string_to_metric_families(text_of(merged({"1": text, "2": None, "3": text})).decode()))
    samples = [sample for family in parsed for sample in family.samples]
    assert [(sample.labels, sample.value) for sample in samples if sample.name == "a_total"] == [
        ({"kind": "k", "process": "1"}, 3.0),
        ({"kind": "k", "process": "3"}, 3.0),
    ]
    assert [sample.value for sample in samples if sample.name == "synergon_worker_answers"] == [1, 0, 1]


def scrape(port: int) -> list[tuple[str, dict[str, str], float]]:
    """The samples of a scrape, as a parser of Prometheus reads them."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    parsed = text_string_to_metric_families(text)
    return [(sample.name, sample.labels, sample.value) for family in parsed for sample in family.samples]


def finished_in(samples: list[tuple[str, dict[str, str], float]]) -> float:
    """How many attempts have succeeded, in all processes."""
    return sum(
        value
        for name, labels, value in samples
        if name == "synergon_attempts_finished_total" and labels["reason"] == "succeeded"
    )


def test_wrong_uses_are_named(shell: Shell) -> None:
    finished = quickly(shell, "health")
    assert finished.code == 2
    assert "which worker? write `synergon health 127.0.0.1:9090`" in finished.err
    finished = quickly(shell, "health", "9090")
    assert finished.code == 2
    assert "health_listen must be like" in finished.err
    finished = quickly(shell, "worker", "app", "--processes", "3", "--health-listen", "127.0.0.1:65534")
    assert finished.code == 2
    assert "3 processes need as many ports after health_listen=127.0.0.1:65534" in finished.err


def test_an_answer_of_another_server_is_not_taken_for_ready(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        finished = quickly(shell, "health", "--timeout", "0.2", address)
    assert finished.code == 1
    assert f"no worker answers at {address}" in finished.err


def test_systemd_hears_of_the_start_the_life_and_the_stop_of_a_worker(shell: Shell, systemd: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": str(systemd.getsockname()), "WATCHDOG_USEC": "200000"}
    with shell.start("worker", "app", **variables) as worker:
        assert next_message(systemd, after=ALIVE) == b"READY=1"
        assert next_message(systemd) == ALIVE
        worker.signal(signal.SIGTERM)
        assert next_message(systemd, after=ALIVE) == b"STOPPING=1"
        assert worker.ended() == 0


def test_systemd_hears_of_several_processes_from_their_supervisor_alone(shell: Shell, systemd: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": str(systemd.getsockname()), "WATCHDOG_USEC": "200000"}
    with shell.start("worker", "app", "--processes", "2", **variables) as supervisor:
        assert next_message(systemd) == b"READY=1"
        assert supervisor.until_says(r"runs \d+ kinds?", times=2)
        assert next_message(systemd) == ALIVE
        supervisor.signal(signal.SIGTERM)
        assert next_message(systemd, after=ALIVE) == b"STOPPING=1"
        assert supervisor.ended() == 0
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            next_message(systemd, after=ALIVE)
