"""Calls the `on_final_failure` function of a kind when an attempt on this node ends its task `failed`.

The function runs before the end is stored, with a transaction of its own. What it writes there is committed together
with the end of the task, under the fence of the claim: both are stored, or neither. If the claim is not current any
more, or the task is to be cancelled, its writes are rolled back. If the node dies meanwhile, the task has not ended:
the node that ends it calls the function again.

If the function raises or takes too long, its writes are rolled back, and the task ends with that error added to its
own. While the database cannot be reached, the function is called again, a few times.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from msgspec.structs import replace

from synergon.errors import StoreUnavailable
from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.outcomes import Crashed, ErrorRecord, Failed, Outcome, Refused, ServerFault
from synergon.model.requirements import with_refusal
from synergon.node.attempts.attempt import Attempt, Services, Stop
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.outcomes import describe
from synergon.node.attempts.task_transaction import NodeTaskTransaction
from synergon.node.callbacks.callbacks import Callbacks
from synergon.node.callbacks.hooks import CALL_SECONDS, error_of, hook_task
from synergon.node.duty import pause_after
from synergon.options.function_names import name_of
from synergon.stores.base import Store
from synergon.stores.rules.finish import failure_of, may_blame_server, may_others_run

TRIES: Final = 5
"""How often the function is called while the database cannot be reached."""


class FinalFailures:
    """Ends tasks of kinds that have an `on_final_failure` function."""

    def __init__(
        self,
        store: Store,
        services: Services,
        completer: Completer,
        callbacks: Callbacks,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._store = store
        self._services = services
        self._completer = completer
        self._callbacks = callbacks
        self._clock = clock
        self._logger = logger

    async def end(self, attempt: Attempt, outcome: Outcome, node_id: str) -> Outcome | None:
        """Call the function if the outcome ends the task `failed`. Returns the outcome that the completer must write;
        None if the outcome is committed already."""
        tries = 0
        while attempt.stop is not Stop.LEASE_LOST:
            try:
                if not await self._is_final(attempt, outcome, node_id):
                    return outcome
                if isinstance(outcome, ServerFault):
                    outcome = outcome.otherwise
                return await self._call_and_end(attempt, outcome, node_id)
            except StoreUnavailable as error:
                tries += 1
                if tries >= TRIES:
                    return self._with_error(attempt, outcome, error, node_id)
                await self._clock.sleep(pause_after(tries))
            except Exception as error:  # noqa: BLE001  the task ends nevertheless
                return self._with_error(attempt, outcome, error, node_id)
        return outcome

    async def _is_final(self, attempt: Attempt, outcome: Outcome, node_id: str) -> bool:
        """Whether this outcome ends the task `failed`."""
        claim, crashes = attempt.claim, 0
        if isinstance(outcome, Crashed | ServerFault):
            (record,) = await self._store.get([claim.id])
            if isinstance(outcome, ServerFault):
                is_charged = record is not None and not may_blame_server(record.server_failures, is_command=False)
                return is_charged and isinstance(outcome.otherwise, Failed)
            crashes = 0 if record is None else record.crashes
        if failure_of(outcome, is_command=attempt.task_type.is_command, crashes=crashes) is not None:
            return True
        if not isinstance(outcome, Refused):
            return False
        runners = [
            node.id
            for node in await self._store.nodes()
            if node.lease_remaining > 0
            and claim.kind in node.kinds
            and (node.queues is None or claim.queue in node.queues)
        ]
        return not may_others_run(with_refusal(outcome.requirements, node_id), runners)

    async def _call_and_end(self, attempt: Attempt, outcome: Outcome, node_id: str) -> Outcome | None:
        function = attempt.task_type.final_failure
        assert function is not None, "only such kinds come here"
        label = f"on_final_failure of {attempt.claim.kind} ({name_of(function)})"
        seconds = self._clock.monotonic() - attempt.started_at
        transaction = NodeTaskTransaction(self._services)
        call = partial(
            function, hook_task(attempt), seconds, error_of(outcome, attempt.claim.attempts, node_id), transaction
        )
        try:
            with self._callbacks.limited(label, CALL_SECONDS) as limit:
                await self._callbacks.call(label, call)
            if transaction.opened is None:
                return outcome
            fenced = attempt.fenced(outcome)
            (verdict,) = await transaction.finish([fenced])
        except Exception as error:
            await transaction.rollback()
            if limit.is_over:
                raise TimeoutError(f"it did not end within {CALL_SECONDS:g} s") from error
            explained = transaction.explain(error)
            if explained is error:
                raise
            raise explained from error
        if verdict.state is not State.FAILED:
            return outcome  # stale, or to be cancelled: all was rolled back, and the completer writes the outcome
        self._completer.announce_now(fenced, verdict)
        return None

    def _with_error(self, attempt: Attempt, outcome: Outcome, error: Exception, node_id: str) -> Outcome:
        """Log the error of `on_final_failure`, and return the outcome with that error added to its own."""
        claim = attempt.claim
        self._logger.error(
            "on_final_failure of task %d (%s) raised; the task ends without it",
            claim.id,
            claim.kind,
            exc_info=error,
            extra={"task_id": claim.id, "kind": claim.kind},
        )
        if not isinstance(outcome, Failed | Crashed | Refused):
            return outcome
        return replace(outcome, error=_joined(outcome.error, describe(error, claim.attempts, node_id)))


def _joined(error: ErrorRecord, raised: ErrorRecord) -> ErrorRecord:
    return replace(
        error,
        message=f"{error.message} (and its on_final_failure raised {raised.type}: {raised.message})",
        traceback=f"{error.traceback}\nThen its on_final_failure raised:\n{raised.traceback}".lstrip(),
    )
