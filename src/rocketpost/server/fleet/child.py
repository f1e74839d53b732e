"""One broker of several: the process that ``server.fleet.fleet`` starts.

It reads its settings as one line of JSON from its standard input. The input stays open as long as
the broker is to run: the broker stops cleanly when it closes, even if the parent was killed.
Standard output has only the ready line, and every line of the log begins with the broker's name.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from rocketpost.server.process import run

PROGRAM: Final = ("-m", "rocketpost.server.fleet.child")
_READ_BYTES: Final = 65_536


class ChildOrder(msgspec.Struct, frozen=True):
    """The settings that a parent passes to the process of a broker.

    Attributes:
        name: The broker's name.
        values: Its properties by RocketMQ's keys.
        sharers: Number of brokers of the command.
        accept_missing: Whether to start although files of the commit log are missing.
    """

    name: str
    values: dict[str, str]
    sharers: int
    accept_missing: bool


def encode_order(order: ChildOrder) -> bytes:
    """Return the line for the standard input of a child."""
    return msgspec.json.encode(order) + b"\n"


def read_order_blocking(fd: int) -> ChildOrder | None:
    """Read the line with the settings; None if the pipe closed before."""
    line = b""
    while not line.endswith(b"\n"):
        got = os.read(fd, _READ_BYTES)
        if not got:
            return None
        line += got
    return msgspec.json.decode(line, type=ChildOrder)


def main() -> int:
    """Run a broker until a signal, a failure or the end of the parent; return the exit code."""
    from rocketpost.server.broker import BrokerServer
    from rocketpost.server.main import announced_address, broker_ready
    from rocketpost.server.settings.broker import broker_settings

    parent_fd = sys.stdin.fileno()
    order = read_order_blocking(parent_fd)
    if order is None:
        return 0

    log, _ = broker_settings(order.values)

    def make() -> BrokerServer:
        return BrokerServer(
            order.values, accept_missing=order.accept_missing, sharers=order.sharers
        )

    return run(
        make,
        ready=broker_ready,
        label=order.name,
        parent_fd=parent_fd,
        log=log,
        announced=announced_address,
    )


if __name__ == "__main__":
    sys.exit(main())
