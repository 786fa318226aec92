"""Timeouts of task functions, and what happens at their deadlines.

`Timeouts` finds the timeout of a kind: its own, otherwise its provider's, otherwise the engine's. A call may override
it.

`Deadlines` has one timer for each distinct timeout, however many attempts have it. Attempts with equal timeouts reach
their deadlines in the order of their starts, so one queue per timeout is sorted by itself. An attempt that ends in time
leaves its queue at once; an empty queue remains for the next attempt. An attempt whose timeout was extended has a timer
of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final

import msgspec

from synergon.errors import OptionError
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.node.attempts.completer import Completer
from synergon.options.durations import Duration
from synergon.options.options import check_timeout
from synergon.options.settings import UNSET
from synergon.task import AnyTask

TimeoutFor = Callable[[str, str | None], Duration | None]
"""A user's function that returns a timeout for a kind and the name of its provider (None without a provider)."""

SLACK: Final = 100
"""How many empty queues are tolerated before they are removed."""

END_SECONDS: Final = 1.0
"""How many seconds a coroutine may take to end after its deadline before it counts as overdue."""


class Timeouts:
    """The timeouts of kinds."""

    def __init__(
        self,
        default_seconds: float | None,
        timeout_for: TimeoutFor | None,
        logger: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._default_seconds = default_seconds
        self._timeout_for = timeout_for
        self._logger = logger
        self._logged_kinds: set[str] = set()

    def of_kind(self, task_type: AnyTask) -> float | None:
        """The timeout of a kind in seconds, for calls that do not override it. None without a timeout."""
        timeout = task_type.policy.timeout
        return self._default_for(task_type) if timeout is msgspec.UNSET else timeout

    def _default_for(self, task_type: AnyTask) -> float | None:
        provider = task_type.provider
        if provider is not None and provider.timeout is not UNSET:
            return provider.timeout
        if self._timeout_for is None:
            return self._default_seconds
        return self._call_timeout_for(self._timeout_for, task_type.kind, None if provider is None else provider.name)

    def _call_timeout_for(self, timeout_for: TimeoutFor, kind: str, provider: str | None) -> float | None:
        """Call the user's function. If it raises, or returns no valid timeout, log that once per kind and use the
        engine's timeout."""
        try:
            return check_timeout(timeout_for(kind, provider))
        except Exception as error:  # noqa: BLE001
            if kind not in self._logged_kinds:
                self._logged_kinds.add(kind)
                what = str(error) if isinstance(error, OptionError) else f"it raised {type(error).__name__}: {error}"
                self._logger.error(
                    "timeout_for(%r, %r) gave no timeout, so the engine's holds: %s", kind, provider, what
                )
            return self._default_seconds


class Deadlines:
    """Requests the end of each attempt at its deadline, and marks the attempt as overdue if it still runs after
    that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, running: Mapping[int, Attempt], completer: Completer) -> None:
        self._loop = loop
        self._running = running
        self._completer = completer
        self._queues: dict[float | None, dict[Attempt, float]] = {}
        """For each timeout, the deadline of each attempt. A dictionary is sorted by insertion, and so by deadline."""
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._most_queues = SLACK
        self._extended: dict[Attempt, asyncio.TimerHandle] = {}
        """Attempts whose deadlines were moved. They are rare, and no queue would stay sorted with them."""

    def arm(self, attempt: Attempt) -> None:
        """Start the timeout of an attempt. Replaces an earlier one."""
        timeout = attempt.timeout
        if attempt.deadline is not None:
            self.disarm(attempt)
        if timeout is None:
            return
        moment = attempt.deadline = self._loop.time() + timeout
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._new_queue(timeout)
        queue[attempt] = moment
        if timeout not in self._timers:
            self._timers[timeout] = self._loop.call_at(moment, self._check_queue, timeout)

    def disarm(self, attempt: Attempt) -> None:
        """Cancel the timeout of an attempt, if it has started."""
        if attempt.deadline is None:
            return
        attempt.deadline = None
        if self._extended and (timer := self._extended.pop(attempt, None)) is not None:
            timer.cancel()
        else:
            del self._queues[attempt.timeout][attempt]

    def extend(self, attempt: Attempt, seconds: float) -> None:
        """Move the deadline of an attempt, or lengthen its timeout if that has not started. Does nothing if the attempt
        has no timeout, or has exceeded it."""
        if attempt.timeout is None or attempt.stop is Stop.TIMEOUT:
            return
        deadline = attempt.deadline
        self.disarm(attempt)
        attempt.timeout += seconds
        if deadline is not None:
            attempt.deadline = deadline + seconds
            self._extended[attempt] = self._loop.call_at(attempt.deadline, self._pass_extended, attempt)

    def _pass_extended(self, attempt: Attempt) -> None:
        self.disarm(attempt)
        self._expire(attempt)

    def _check_queue(self, timeout: float) -> None:
        """Called by the timer of a queue: handle the attempts whose deadlines have come, and start the timer for the
        next one."""
        del self._timers[timeout]
        queue, now = self._queues[timeout], self._loop.time()
        passed = [attempt for attempt, _ in takewhile(lambda entry: entry[1] <= now, queue.items())]
        for attempt in passed:
            self.disarm(attempt)
        first = next(iter(queue.values()), None)
        if first is not None:
            self._timers[timeout] = self._loop.call_at(first, self._check_queue, timeout)
        else:
            del self._queues[timeout]
        for attempt in passed:
            self._expire(attempt)

    def _expire(self, attempt: Attempt) -> None:
        attempt.ask_to_stop(Stop.TIMEOUT)
        if attempt.stop is not Stop.TIMEOUT or attempt.runs_in == "process":
            return
        # The slot stays taken until the task function has really ended: to free it here would let a second attempt of
        # the task start beside the first. A coroutine gets a short time to end; a thread cannot be ended.
        self._loop.call_later(END_SECONDS if attempt.runs_in == "loop" else 0.0, self._mark_overdue, attempt)

    def _mark_overdue(self, attempt: Attempt) -> None:
        if self._running.get(attempt.claim.id) is attempt:
            self._completer.mark_overdue(attempt)

    def _new_queue(self, timeout: float) -> dict[Attempt, float]:
        if len(self._queues) >= self._most_queues:
            self._drop_empty_queues()
        queue = self._queues[timeout] = {}
        return queue

    def _drop_empty_queues(self) -> None:
        for timeout in [timeout for timeout, queue in self._queues.items() if not queue]:
            del self._queues[timeout]
            if timeout in self._timers:
                self._timers.pop(timeout).cancel()
        self._most_queues = 2 * len(self._queues) + SLACK
