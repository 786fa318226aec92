"""Carries out operator actions for this node, and reports them. It reads them after a hint and with each sweep."""

from __future__ import annotations

import logging
from typing import Final

from synergon.errors import StoreError
from synergon.model.operator_actions import AuditRecord
from synergon.node.duties.cordon import Cordon, Departure
from synergon.node.signals import Signals
from synergon.stores.base import Store

AT_ONCE: Final = 100

OUTCOMES: Final = {
    "cordon": "cordoned",
    "uncordon": "takes work again",
    "drain": "ends when nothing runs there",
    "restart": "restarts when nothing runs there",
    "stop": "stops",
}


class OperatorActions:
    """Carries out cordon, uncordon, drain, restart and stop."""

    def __init__(
        self,
        store: Store,
        cordon: Cordon,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
    ) -> None:
        self._store = store
        self._cordon = cordon
        self._logger = logger
        self._signals = signals

    async def carry_out_pending(self, node_id: str) -> None:
        """Carry out the actions that are not reported yet, oldest first."""
        for action in await self._store.audit(AT_ONCE, node_id):
            self._logger.info("operator action: %s, by %s", action.verb, action.who)
            try:
                await self._store.action_done(action.id, OUTCOMES.get(action.verb, "not understood"))
            except StoreError:
                # The report may have been stored although the call failed, and the action would not be read again. So
                # it is carried out anyway: to do so twice does no harm.
                self._carry_out(action)
                raise
            self._carry_out(action)

    def _carry_out(self, action: AuditRecord) -> None:
        match action.verb:
            case "cordon":
                self._cordon.cordon()
            case "uncordon":
                self._cordon.uncordon()
            case "drain" | "restart":
                self._cordon.depart(Departure(action.verb))
            case "stop":
                self._signals.stop_requested()
            case _:
                self._logger.error("the operator action %r is not one for a node", action.verb)
