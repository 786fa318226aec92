"""Helpers for tests of your own tasks: no server, no file, no waiting.

    async with testing.memory(app.engine) as tester:    # the app's engine, on a private store for the time of the block
        await app.sign_up("ada@example.com")
        tester.assert_enqueued(app.send_welcome, "ada@example.com")
        await tester.drain()                            # runs everything that is due, in this process
        tester.clock.advance("10m")                     # delays, retries and schedules follow this clock alone
        await tester.drain()

Task functions run as they would on a node, with its encoding of arguments and results, its `Context` and its retries.
"""

from datetime import datetime

from synergon.engine import Engine
from synergon.testing.clock import ManualClock
from synergon.testing.tester import Tester
from synergon.testing.use import Use

__all__ = ["ManualClock", "Tester", "Use", "inline", "memory", "use"]


def memory(engine: Engine, *, now: datetime | None = None) -> Tester:
    """Put the engine, whatever its URL, on a private memory store for the duration of an `async with` or a `with`.

    No task runs until `drain()` is called, or until a caller asks for a result. The clock starts at `now` and does not
    advance by itself.
    """
    return Tester(engine, is_inline=False, now=now)


def inline(engine: Engine, *, now: datetime | None = None) -> Tester:
    """Like `memory`, but each enqueue runs all due tasks before it returns, so that their results are available at
    once.

    Delayed tasks and retries wait for the clock: after `clock.advance()`, the next enqueue or `drain()` runs them.
    """
    return Tester(engine, is_inline=True, now=now)


def use(engine: Engine, url: str | None = None) -> Use:
    """Put the engine on another database for the duration of an `async with` or a `with`, which gets the engine.

    Without a URL, or with `memory://`, that is the store of `memory`. `sqlite://` is a temporary file, and a
    `postgresql://` URL without `schema` a new schema in that database; both are deleted at the end of the block. A URL
    that names a file or a schema is used as it is. On these, workers run tasks, as in the program.
    """
    return Use(engine, url)
