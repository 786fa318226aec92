"""How long a body may run: the task's own word, then its kind's, its provider's, the engine's."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from synergon.errors import OptionError
from synergon.options.durations import Duration
from synergon.options.options import check_timeout
from synergon.options.settings import UNSET
from synergon.task import AnyTask

TimeoutFor = Callable[[str, str | None], Duration | None]
"""A function of the kind and of the provider's name; None for tasks without one."""


class Timeouts:
    """What holds for kinds that say nothing themselves."""

    def __init__(
        self,
        default_seconds: float | None,
        timeout_for: TimeoutFor | None,
        logger: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._default_seconds = default_seconds
        self._timeout_for = timeout_for
        self._logger = logger
        self._mentioned: set[str] = set()

    def of_kind(self, task_type: AnyTask) -> float | None:
        """Seconds, unless a call says otherwise; None: as long as it takes."""
        timeout = task_type.policy.timeout
        return self._default(task_type) if timeout is msgspec.UNSET else timeout

    def _default(self, task_type: AnyTask) -> float | None:
        provider = task_type.provider
        if provider is not None and provider.timeout is not UNSET:
            return provider.timeout
        if self._timeout_for is None:
            return self._default_seconds
        return self._asked(self._timeout_for, task_type.kind, None if provider is None else provider.name)

    def _asked(self, timeout_for: TimeoutFor, kind: str, provider: str | None) -> float | None:
        """The user's function must not keep a task from running: what it gets wrong is said once."""
        try:
            return check_timeout(timeout_for(kind, provider))
        except Exception as error:  # noqa: BLE001
            if kind not in self._mentioned:
                self._mentioned.add(kind)
                what = str(error) if isinstance(error, OptionError) else f"it raised {type(error).__name__}: {error}"
                self._logger.error(
                    "timeout_for(%r, %r) gave no timeout, so the engine's holds: %s", kind, provider, what
                )
            return self._default_seconds
