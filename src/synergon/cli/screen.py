"""A picture on the whole terminal that is replaced again and again, and the keys that are pressed meanwhile.

The picture is on the terminal's second screen. When the screen is left, in whatever way, and while the process is
suspended (Ctrl-Z), the terminal is as it was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from rich.control import Control

from synergon.cli.output import console

if TYPE_CHECKING:
    from rich.console import RenderableType, ScreenContext

ESCAPE: Final = "\x1b"
"""The key Escape. Arrows and function keys send several characters that begin with it; they are ignored."""
STOP: Final = "stop"
"""`key` returns this instead of a key when the process gets a signal to end."""
RESIZE: Final = "resize"
"""`key` returns this instead of a key when the terminal has another size, or when the process goes on after Ctrl-Z."""


def has_terminal() -> bool:
    """Whether a screen can be shown: output and input are a terminal."""
    return console.is_terminal and sys.stdin.isatty()


class Screen:
    """The terminal, while it shows a picture. Use it as a context manager, in an event loop."""

    def __init__(self) -> None:
        self._picture: ScreenContext = console.screen(hide_cursor=True)
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._restored: list[Any] | None = None

    def __enter__(self) -> Self:
        self._loop.add_reader(sys.stdin.fileno(), self._read)
        self._loop.add_signal_handler(signal.SIGTERM, self._keys.put_nowait, STOP)
        self._loop.add_signal_handler(signal.SIGHUP, self._keys.put_nowait, STOP)
        self._loop.add_signal_handler(signal.SIGWINCH, self._keys.put_nowait, RESIZE)
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._occupy()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP):
            self._loop.remove_signal_handler(number)
        self._loop.remove_reader(sys.stdin.fileno())

    def _occupy(self) -> None:
        import termios  # not on Windows
        import tty

        self._restored = termios.tcgetattr(sys.stdin.fileno())
        tty.setcbreak(sys.stdin.fileno())
        self._picture.__enter__()

    def _release(self) -> None:
        import termios

        self._picture.__exit__(None, None, None)
        if self._restored is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._restored)

    def _suspend(self) -> None:
        self._release()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._occupy()  # the process goes on here
        self._keys.put_nowait(RESIZE)

    def _read(self) -> None:
        try:
            pressed = os.read(sys.stdin.fileno(), 1024).decode(errors="ignore")
        except OSError:
            pressed = ""
        if not pressed:  # the terminal is gone
            self._loop.remove_reader(sys.stdin.fileno())
            self._keys.put_nowait(STOP)
        elif not pressed.startswith(ESCAPE) or pressed == ESCAPE:
            for key in pressed:
                self._keys.put_nowait(key)

    def show(self, picture: RenderableType) -> None:
        """Replace the picture. What does not fit is cut off."""
        console.control(Control.home())
        self._picture.update(picture)

    async def key(self, seconds: float) -> str | None:
        """The next key that is pressed, or STOP or RESIZE. None if none comes in this time."""
        try:
            return await asyncio.wait_for(self._keys.get(), max(seconds, 0))
        except TimeoutError:
            return None


async def refresh(
    interval: float,
    read: Callable[[], Awaitable[None]],
    draw: Callable[[], RenderableType],
    press: Callable[[str], bool],
) -> None:
    """Read and draw every `interval` seconds until `press` returns False for a key. STOP ends it and RESIZE draws
    again, without a call of `press`."""
    loop = asyncio.get_running_loop()
    with Screen() as screen:
        due = loop.time()
        while True:
            if loop.time() >= due:
                await read()
                due = loop.time() + interval
            screen.show(draw())
            key = await screen.key(due - loop.time())
            if key == STOP or (key not in (None, RESIZE) and not press(str(key))):
                return
