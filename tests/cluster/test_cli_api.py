"""`synergon api` and `synergon credentials`: real processes."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.cluster.cli_support import Shell, quickly
from tests.support import PATIENCE_SECONDS


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the document of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_api_answers_this_machine_until_it_is_stopped(shell: Shell) -> None:
    (task_id,) = shell.enqueue("greet", name="ada")
    with shell.start("api", "app", "--listen", ":0") as server:
        url = server.until_says(r"listening on (http://127\.0\.0\.1:\d+/api/v1), for sqlite:///app\.db")[0][1]
        status, task = ask(f"{url}/tasks/{task_id}")
        assert (status, task["arguments"]) == (200, {"name": "ada"})
        assert ask(f"{url}/tasks/{task_id}/cancel", {})[0] == 403
        assert ask(f"{url}/queues", Host="evil.example.com")[0] == 400
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0]))) as large:
            head = b"POST /api/v1/tasks/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            large.sendall(head + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n")
            assert large.recv(100).startswith(b"HTTP/1.1 431")
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    assert shell.counts() == {"ready": 1}


def test_the_api_knows_tokens_and_refuses_to_start_without_them(shell: Shell) -> None:
    shell.enqueue("greet", name="ada")
    refused = quickly(shell, "api", "app", "--listen", "0.0.0.0:0")
    assert refused.code == 2
    assert "give --credentials FILE, or set SYNERGON_WEB_TOKENS" in refused.err
    made = quickly(shell, "credentials", "token", "--name", "ci", "--role", "admin", "--json").document
    entry = quickly(shell, "credentials", "token", "--name", "other").out.partition("[tokens.")[2]
    (shell.folder / "web.toml").write_text(f"[tokens.{entry}")
    tokens = f"ci:admin:{made['token']}"
    arguments = ("api", "app", "--listen", ":0", "--credentials", "web.toml")
    with shell.start(*arguments, SYNERGON_WEB_TOKENS=tokens) as server:
        url = server.until_says(r"listening on (\S+),")[0][1]
        assert ask(f"{url}/user")[0] == 401
        authorization = f"Bearer {made['token']}"
        assert ask(f"{url}/user", Authorization=authorization) == (200, {"name": "ci", "role": "admin"})
        assert ask(f"{url}/queues/default/pause", {}, Authorization=authorization)[0] == 200
        assert ask(f"{url}/doctor", Authorization=authorization)[1]["is_healthy"] is not None
    (paused,) = quickly(shell, "audit", "--app", "app", "--json").lines
    assert (paused["verb"], paused["who"]) == ("pause", "ci@127.0.0.1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("api", "app", "--listen", "8080"), "an address to listen on is like"),
        (("api", "app", "--grant", "root"), "--grant is one of read, operate, admin"),
        (("api", "app", "--credentials", "nothing.toml"), "cannot be read"),
        (("api", "--url", "memory://"), "in the memory of one process"),
        (("api", "--url", "sqlite:///nothing.db"), "there is no database"),
        (("credentials", "token", "--name", "ci", "--role", "root"), "--role is one of"),
        (("credentials", "password", "--name", "ci"), "12 characters or more"),
    ],
)
def test_wrong_use_is_one_line(shell: Shell, arguments: tuple[str, ...], words: str) -> None:
    finished = shell.run(*arguments) if "password" in arguments else quickly(shell, *arguments)
    assert finished.code != 0
    assert words in finished.err
    assert len(finished.err.splitlines()) == 1
