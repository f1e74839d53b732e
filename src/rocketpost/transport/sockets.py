"""Sockets for code that reads and writes them itself, made by the running loop if it simulates one.

A simulation runs servers and clients on an event loop of its own, in virtual time and without the
operating system's network. It is asked here for sockets, and for stand-ins of threads. An ordinary
loop has no simulation, and everything is the operating system's.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol, cast


class Simulation(Protocol):
    """The parts of a machine that a simulating loop provides, besides those of every loop."""

    def make_socket(self) -> Any:
        """Return an unconnected stream socket."""
        ...

    def make_listening_socket(self, host: str, port: int) -> Any:
        """Return a socket that accepts connections; ``OSError`` if the address is in use."""
        ...

    def local_ip(self) -> str:
        """Return the address of the machine on which the caller runs."""
        ...

    def make_thread_workers(self, count: int, *, ranked: bool) -> Any:
        """Return workers that run plain handlers as if in threads (``client.consumer.push``)."""
        ...


def find_simulation() -> Simulation | None:
    """Return the simulation of the running loop; None if there is none, or an ordinary one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    found: Simulation | None = getattr(loop, "simulation", None)
    return found


def make_socket(family: int, kind: int, protocol: int) -> socket.socket:
    """Return a socket that is not connected yet."""
    simulation = find_simulation()
    if simulation is not None:
        return cast(socket.socket, simulation.make_socket())
    return socket.socket(family, kind, protocol)


def make_listening_socket(host: str, port: int, *, family: int, backlog: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        OSError: The address cannot be bound.
    """
    simulation = find_simulation()
    if simulation is not None:
        return cast(socket.socket, simulation.make_listening_socket(host, port))
    return socket.create_server((host, port), family=family, backlog=backlog)
