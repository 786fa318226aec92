"""Orders for this node: read when somebody hints at them or at the sweep, obeyed once, and answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from synergon.control_records import OrderRecord
from synergon.node.scheduler import Scheduler
from synergon.stores.base import Store

AT_ONCE: Final = 100


class Orders:
    """Obeys cordon, uncordon and stop."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        on_stop: Callable[[], None],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._logger = logger
        self._on_stop = on_stop

    async def obey(self, node_id: str) -> None:
        """Carry out what was ordered and not done yet, in order."""
        for order in await self._store.orders(AT_ONCE, node_id):
            self._logger.info("%s orders: %s", order.who, order.verb)
            if await self._store.order_done(order.id, self._outcome(order)):
                self._carry_out(order)

    @staticmethod
    def _outcome(order: OrderRecord) -> str:
        return {"cordon": "cordoned", "uncordon": "takes work again", "stop": "stops"}.get(order.verb, "not understood")

    def _carry_out(self, order: OrderRecord) -> None:
        match order.verb:
            case "cordon":
                self._scheduler.cordon()
            case "uncordon":
                self._scheduler.uncordon()
            case "stop":
                self._on_stop()
            case _:
                self._logger.error("the order %r is not one for a node", order.verb)
