"""A stranger on a peer port: `stranger ATTACK HOST PORT` attacks until it is ended.

After each round, when the server has closed every connection of it, the number of these connections is printed.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

MIB: Final = 1 << 20
START: Final = b"POST /peer/v1 HTTP/1.1\r\nHost: here\r\n"
FIELDS: Final = b"X-Peer-ID: x\r\nX-Peer-To: x\r\nX-Peer-Time: 1\r\nX-Peer-Nonce: 1\r\nX-Peer-Signature: 1\r\n"
CHUNKED: Final = START + FIELDS + b"Transfer-Encoding: chunked\r\n\r\n"
DEFERRAL_SECONDS: Final = 60
"""No attack lasts as long unless the server lets it."""
PAUSE_SECONDS: Final = 0.01


def repeated(first: bytes, part: bytes, size: int) -> Iterator[bytes]:
    """So many bytes, in pieces."""
    piece = part * (65536 // len(part))
    yield first + piece
    for _ in range(size // len(piece)):
        yield piece


def drip() -> Iterator[bytes]:
    """A body of which a byte arrives from time to time."""
    yield START + FIELDS + b"Content-Length: 10000\r\n\r\n"
    while True:
        yield b" "


def garbage() -> Iterator[bytes]:
    """What is no HTTP at all."""
    while True:
        yield os.urandom(65536)


def forged() -> Iterator[bytes]:
    """A whole message about tasks, of this second, whose signature is made up."""
    body = json.dumps({"v": 1, "cancel": [*range(1, 1000)], "done": [*range(1, 1000)], "control": True}).encode()
    fields = {
        "X-Peer-ID": "00000000-0000-4000-8000-000000000000",
        "X-Peer-To": "00000000-0000-4000-8000-000000000001",
        "X-Peer-Time": str(time.time_ns() // 1000),
        "X-Peer-Nonce": os.urandom(16).hex(),
        "X-Peer-Signature": os.urandom(32).hex(),
        "Content-Length": str(len(body)),
    }
    yield START + "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode() + b"\r\n" + body


ATTACKS: Final[dict[str, tuple[int, Callable[[], Iterator[bytes]]]]] = {
    "silent": (300, lambda: iter(())),
    "half_open": (300, lambda: iter((START,))),
    "headers": (1, lambda: repeated(START, b"a: b\r\n", 75 * MIB)),
    "long_header": (1, lambda: repeated(START + b"a: ", b"b", 75 * MIB)),
    "url": (1, lambda: repeated(b"POST /", b"x", 75 * MIB)),
    "pipelined": (1, lambda: repeated(b"", START + FIELDS + b"Content-Length: 2\r\n\r\n{}", 72 * MIB)),
    "pipelined_elsewhere": (1, lambda: repeated(b"", b"GET / HTTP/1.1\r\n\r\n", 72 * MIB)),
    "large_body": (1, lambda: repeated(START + FIELDS + b"Content-Length: 99999999\r\n\r\n", b" ", 75 * MIB)),
    "chunks": (1, lambda: repeated(CHUNKED, b"1\r\n \r\n", 75 * MIB)),
    "unended_chunks": (60, lambda: iter((CHUNKED + b"2\r\n  \r\n" * 18_000,))),
    "methods": (20, lambda: iter((b"GET /peer/v1 HTTP/1.1\r\n\r\nTELL / HTTP/1.1\r\n\r\n",))),
    "slow_body": (300, drip),
    "garbage": (20, garbage),
    "forged": (20, forged),
}


class Victim:
    """One connection: writes what it has whenever it can, and notes when the server has closed it."""

    def __init__(self, address: tuple[str, int], parts: Iterator[bytes], *, is_slow: bool) -> None:
        self.socket = socket.create_connection(address, timeout=DEFERRAL_SECONDS)
        self.socket.setblocking(False)
        self._parts = parts
        self._is_slow = is_slow
        self._unsent = b""
        self.has_more = True

    def write(self) -> None:
        """Write as much as fits; a slow one a byte."""
        while self.has_more:
            self._unsent = self._unsent or next(self._parts, b"")
            self.has_more = bool(self._unsent)
            if self.has_more:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            if self._is_slow:
                return

    def is_closed(self) -> bool:
        """Read what there is; whether the server has closed the connection."""
        return not self.socket.recv(65536)


def attack(name: str, address: tuple[str, int]) -> int:
    """One round: returns when the server has closed all its connections."""
    number, parts = ATTACKS[name]
    is_slow = name == "slow_body"
    with selectors.DefaultSelector() as selector:
        for _ in range(number):
            victim = Victim(address, parts(), is_slow=is_slow)
            selector.register(victim.socket, selectors.EVENT_READ, victim)
        while selector.get_map():
            ready = {key.fd: key.data for key, _ in selector.select(0.05)}
            for victim in [key.data for key in list(selector.get_map().values())]:
                try:
                    victim.write()
                    is_closed = victim.socket.fileno() in ready and victim.is_closed()
                except BlockingIOError:
                    continue
                except OSError:
                    is_closed = True
                if is_closed:
                    selector.unregister(victim.socket)
                    victim.socket.close()
    return number


def main() -> None:
    name, host, port = sys.argv[1:]
    os.nice(5)  # the attacker shares the processors with its victim
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    while True:
        with suppress(ConnectionError):  # the victim was ended, and another may take its place
            print(attack(name, (host, int(port))), flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
