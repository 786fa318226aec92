"""Messages to systemd: a service of `Type=notify` says when it is ready, alive and about to stop.

The protocol is one datagram to the socket that `$NOTIFY_SOCKET` names. Without that variable there is no notifier.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

READY: Final = "READY=1"
ALIVE: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"

VARIABLES: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
"""The environment variables that systemd sets for the main process of a service. Other processes of the service must
not use them."""

_logger = logging.getLogger("synergon.node")


class SystemdNotifier:
    """Sends messages to systemd. A message that cannot be sent is logged, and changes nothing else."""

    def __init__(self, address: str, watchdog_seconds: float | None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.interval_seconds: Final = None if watchdog_seconds is None else watchdog_seconds / 2
        """The seconds between two messages that the process is alive: half of the time after which systemd kills it.
        None if systemd does not expect such messages."""
        self._has_failed = False

    def send(self, message: str) -> None:
        """Send one message, without waiting."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.setblocking(False)
                datagrams.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                _logger.warning("cannot notify systemd at $NOTIFY_SOCKET: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False


def notifier_of(environment: Mapping[str, str]) -> SystemdNotifier | None:
    """The notifier for the variables that systemd gives to a service. None if this process is not such a service."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    return SystemdNotifier(address, _watchdog_seconds(environment))


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    microseconds = environment.get("WATCHDOG_USEC", "")
    is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 1_000_000 if is_ours and microseconds.isdecimal() and int(microseconds) else None
