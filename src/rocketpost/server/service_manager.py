"""Messages to systemd about the state of this process (``sd_notify``).

    READY=1       requests are served
    STOPPING=1    the process stops
    WATCHDOG=1    the event loop is alive; at half of ``WatchdogSec``, as systemd asks for

systemd names the socket in NOTIFY_SOCKET. Without it nothing is sent. The variable is removed, so
that child processes do not send messages in its name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final

logger = logging.getLogger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"


class ServiceManager:
    """Tells systemd about this process, if systemd has started it.

    Args:
        environment: The environment variables, from which those of systemd are removed.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        path = variables.pop(_SOCKET, "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        pid = variables.pop(_WATCHDOG_PID, "")
        micros = variables.pop(_WATCHDOG, "")
        is_mine = pid in ("", str(os.getpid()))
        self.alive_seconds = int(micros) / 2e6 if micros.isdecimal() and is_mine else 0.0
        """Time between two signs of life; 0 if systemd wants none."""

    def ready(self, status: str) -> None:
        """Report that requests are served."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def stopping(self) -> None:
        """Report that the process stops."""
        self._send("STOPPING=1\nSTATUS=stopping")

    async def keep_alive(self) -> None:
        """Send signs of life from the event loop until cancelled; a stuck loop sends none."""
        while self._address and self.alive_seconds > 0:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.alive_seconds)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)  # a full socket must not stop the event loop
            try:
                sender.sendto(text.encode(), self._address)
            except OSError as error:
                logger.warning("systemd was not told: message=%s reason=%s", text, error)


def _one_line(text: str) -> str:
    return " ".join(text.split())
