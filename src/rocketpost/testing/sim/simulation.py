"""The simulated network as the event loop and ``transport.sockets`` ask for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from rocketpost.testing.sim.loop import SimulatedLoop
from rocketpost.testing.sim.sockets import ListeningSocket, SimulatedSocket
from rocketpost.testing.sim.streams import StreamNetwork, running_process
from rocketpost.testing.sim.transports import SimulatedServer, SimulatedTransport, open_transport
from rocketpost.testing.sim.workers import HandlerThreads


class SimulatedNetwork(StreamNetwork):
    """The network of a simulation; see ``transport.sockets.Simulation``.

    Args:
        loop: The loop, which uses it from then on.
        rng: The source of delays.
    """

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        super().__init__(loop, rng)
        loop.simulation = self

    def local_ip(self) -> str:
        """Return the address of the current machine."""
        return running_process().machine.ip

    def make_thread_workers(self, count: int, *, ranked: bool) -> HandlerThreads:
        """Return workers that run plain handlers."""
        return HandlerThreads(count, ranked=ranked)

    def make_server(self, factory: Callable[[], Any], host: str, port: int) -> SimulatedServer:
        """Return a server of ``asyncio``'s kind."""
        return SimulatedServer(self, factory, host, port)

    async def open_transport(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[SimulatedTransport, Any]:
        """Connect, and return transport and protocol."""
        return await open_transport(self, factory, host, port)

    def make_socket(self) -> SimulatedSocket:
        """Return an unconnected socket."""
        return SimulatedSocket(self)

    def make_listening_socket(self, host: str, port: int) -> ListeningSocket:
        """Return a socket that accepts connections."""
        return ListeningSocket(self, host, port)

    def socket_of(self, number: int) -> SimulatedSocket:
        """Return the socket with a descriptor's number."""
        return cast(SimulatedSocket, self.sockets[number])
