"""The ports of an engine to the outside world. Tests replace single ports.

The functions that create a node, an executor and a transport import their modules when they are called, so a program
that only enqueues loads neither the node nor the peering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from synergon.client.results import Waiters
from synergon.model.clock import Clock, SystemClock
from synergon.stores import open_store

if TYPE_CHECKING:
    from synergon.node.node import Node
    from synergon.node.processes.executors import Executor
    from synergon.options.settings import Settings
    from synergon.peering.transport import Transport
    from synergon.stores.base import Store


def _node(*args: Any, **kwargs: Any) -> Node:
    from synergon.node.node import Node

    return Node(*args, **kwargs)


def _executor(settings: Settings) -> Executor:
    from synergon.node.processes.executors import LocalExecutor

    return LocalExecutor(settings)


def _transport(settings: Settings) -> Transport | None:
    from synergon.peering.default_transport import default_transport

    return default_transport(settings)


@dataclass(slots=True, kw_only=True)
class Ports:
    """The clock of an engine, and the functions that create its store, waiters, transport, executor and node."""

    clock: Clock = field(default_factory=SystemClock)
    make_store: Callable[[str], Store] = open_store
    make_waiters: Callable[..., Waiters] = Waiters
    make_transport: Callable[[Settings], Transport | None] = _transport
    make_executor: Callable[[Settings], Executor] = _executor
    make_node: Callable[..., Node] = _node
