"""Gives an engine other settings and ports for the duration of a block, and restores the original ones.

The engine remains the object that the code under test has imported: its kinds, limits, schedules, hooks and lifespans
are those of the program. Its connection is a new one, so a block may begin while the engine is connected, and inside
another block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synergon.client.ports import Ports
from synergon.engine import Engine
from synergon.errors import OptionError, SynergonError


def check_engine(engine: Any) -> Engine:
    """Return the engine under test. Raises OptionError if it is something else."""
    if not isinstance(engine, Engine):
        raise OptionError(f"a test needs an Engine, got {engine!r}; if your app makes it later, pass that one")
    return engine


@dataclass(slots=True, kw_only=True)
class TestPorts(Ports):
    """The ports of an engine whose tasks a tester runs."""

    __test__ = False

    original: Ports
    """The ports of the program."""


def original_ports(engine: Engine) -> Ports:
    """The ports of the program, also inside the block of a tester."""
    return engine._ports.original if isinstance(engine._ports, TestPorts) else engine._ports


def close_sync(engine: Engine, *, is_failed: bool) -> None:
    """End the connection that synchronous calls have opened in a block. Raises SynergonError if the code under test has
    opened another one and left it open, unless the block has failed anyway."""
    engine.sync_bridge.close()
    if engine._connection.is_open and not is_failed:
        raise SynergonError("the code under test has left the engine connected; close it before the block ends")


class Substitution:
    """The change of one engine for one block. It begins when the object is made, and ends with `end`."""

    def __init__(self, engine: Engine, ports: Ports, url: str | None = None) -> None:
        if engine._node is not None:
            raise SynergonError(f"a worker of {engine!r} runs already; begin the test before the worker starts")
        self._engine = engine
        self._before = vars(engine).copy()
        if url is not None:
            engine.settings = engine.settings.changed({"url": url}, "testing.use")
        engine._ports = ports
        engine._renew_parts()

    def end(self) -> None:
        """Restore the settings, the ports and the connection."""
        vars(self._engine).update(self._before)
        self._engine._registry.is_declared = False  # a limit may have been declared since, to the other store only
