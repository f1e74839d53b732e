"""A simulated network of byte streams, with the faults of a real one.

Bytes arrive in order, after a delay drawn from the seed, and sometimes in two parts. While a
direction between two machines is blocked, its bytes wait, as TCP repeats them; they arrive when the
direction is open again, unless the sender gives up first. A machine without power answers nothing:
its connections stay half-open, and are reset when the machine runs again and the peer sends. A
process that is killed closes its connections, as its operating system does.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from rocketpost.testing.sim.loop import SimulatedLoop
from rocketpost.testing.sim.machine import Machine, Process, current_process

Address = tuple[str, int]

WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that may be under way, or unread by the peer, in one direction."""
GIVE_UP_SECONDS: Final = 900.0
"""Time after which a sender gives up if its bytes do not arrive, as Linux does by default."""
_SYN_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_REPEAT_SECONDS: Final = 0.4
_STEP_SECONDS: Final = 0.000_001
_PART_BYTES: Final = 256 * 1024
_SPLIT_CHANCE: Final = 0.05
_FIRST_PORT: Final = 40_000
_ANY: Final = ("", "0.0.0.0", "::")


class Receiver(Protocol):
    """The user of an end of a stream."""

    def handle_data(self) -> None:
        """React to bytes, or the end of the stream, that can be read."""
        ...

    def handle_room(self) -> None:
        """React to room for more bytes."""
        ...

    def handle_lost(self, error: OSError | None) -> None:
        """React to the loss of the stream."""
        ...


class End:
    """One end of a stream. Its events happen in the context of its owner.

    Args:
        network: The network.
        process: The owner.
        local: Its own address.
        peer: The address of the other end.
    """

    other: End
    receiver: Receiver

    def __init__(
        self, network: StreamNetwork, process: Process, local: Address, peer: Address
    ) -> None:
        self.network = network
        self.process = process
        self.context = contextvars.copy_context() if current_process() is process else None
        self.local = local
        self.peer = peer
        self.give_up_seconds = GIVE_UP_SECONDS
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.unread: deque[bytes] = deque()
        self.travelling = 0
        """Bytes sent that the other end has not read."""
        self.is_open = True
        self.is_ended = False
        """Whether the peer sends nothing more."""
        self._is_ending = False
        self._arrival = 0.0
        self.held: list[bytes | None] = []
        """Parts that wait for a blocked direction; None is the end of the stream."""

    @property
    def room(self) -> int:
        """Bytes that the network takes now."""
        return max(0, WINDOW_BYTES - self.travelling - self.unsent_bytes)

    def send(self, data: bytes) -> None:
        """Send bytes, or keep them until the peer has read others."""
        if self.is_open and data:
            self.unsent.append(data)
            self.unsent_bytes += len(data)
            self._pump()

    def close(self) -> None:
        """Send what is left, then the end of the stream."""
        if self.is_open and not self._is_ending:
            self._is_ending = True
            self._pump()

    def reset(self) -> None:
        """Drop everything, and let the peer know."""
        if self.is_open:
            self.is_open = False
            self.unsent.clear()
            self.unsent_bytes = 0
            self.network.carry_reset(self)

    def read(self, size: int) -> bytes:
        """Take up to ``size`` bytes that have arrived; empty if there are none."""
        if not self.unread:
            return b""
        data = self.unread.popleft()
        if len(data) > size:
            self.unread.appendleft(data[size:])
            data = data[:size]
        self.other.note_read(len(data))
        return data

    def note_read(self, size: int) -> None:
        """Count bytes that the peer has read."""
        self.travelling -= size
        if self.is_open and self.process.is_alive:
            if self.unsent:
                self._pump()
            self.network.call(self, self.receiver.handle_room)

    def arrive(self, data: bytes | None) -> None:
        """Take a part from the network; None is the end of the stream."""
        if not self.is_open:
            if data is not None:
                self.network.carry_reset(self)
            return
        if data is None:
            self.is_ended = True
        else:
            self.unread.append(data)
        self.receiver.handle_data()

    def lose(self, error: OSError | None) -> None:
        """Take the loss of the stream from the network."""
        if self.is_open:
            self.is_open = False
            self.receiver.handle_lost(error)

    def release(self) -> None:
        """Send parts that were held back, since the direction is open again."""
        held, self.held = self.held, []
        for part in held:
            self.network.carry(self, part, extra=_REPEAT_SECONDS)

    def plan_arrival(self, when: float) -> float:
        """Return when a part arrives that is sent now: always after the part before it."""
        self._arrival = max(self._arrival + _STEP_SECONDS, when)  # timers have no order in a tie
        return self._arrival

    def _pump(self) -> None:
        while self.unsent and self.travelling < WINDOW_BYTES:
            data = self.unsent.popleft()
            if len(data) > _PART_BYTES:
                self.unsent.appendleft(data[_PART_BYTES:])
                data = data[:_PART_BYTES]
            self.unsent_bytes -= len(data)
            self.travelling += len(data)
            self.network.carry(self, data)
        if self._is_ending and not self.unsent:
            self.is_open = False
            self.network.carry(self, None)


class StreamNetwork:
    """All machines, their listeners and their connections.

    Args:
        loop: The loop.
        rng: The source of delays.
    """

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self.loop = loop
        self._rng = rng
        self.machines: dict[str, Machine] = {}
        self.blocked: set[tuple[str, str]] = set()
        """Directions, as names of machines, in which nothing arrives."""
        self.delay_seconds = (0.000_2, 0.001)
        """Shortest and longest delay between two machines."""
        self.listeners: dict[Address, Any] = {}
        self.ends: dict[End, None] = {}
        self.sockets: dict[int, Any] = {}
        self._ports = _FIRST_PORT

    # Machines.

    def find(self, ip: str) -> Machine | None:
        """Return the machine with an address."""
        for machine in self.machines.values():
            if machine.ip == ip:
                return machine
        return None

    def is_blocked(self, source: Machine, target: Machine) -> bool:
        """Tell whether nothing that ``source`` sends arrives."""
        return (source.name, target.name) in self.blocked or not target.is_on

    def open_again(self) -> None:
        """Deliver what waits for directions that are open now."""
        for end in [end for end in self.ends if end.held]:
            if not self.is_blocked(end.process.machine, end.other.process.machine):
                end.release()

    def close_process(self, process: Process) -> None:
        """Close the listeners and connections of a process that has ended."""
        for address in [a for a, each in self.listeners.items() if each.process is process]:
            del self.listeners[address]
        for end in [end for end in self.ends if end.process is process]:
            end.is_open = False
            end.unsent.clear()
            self.ends.pop(end)
            if process.machine.is_on:
                self.carry_reset(end)
        self.sockets = {n: s for n, s in self.sockets.items() if s.process is not process}

    # Parts under way.

    def draw_delay(self, source: Machine, target: Machine) -> float:
        """Return the time that a part takes."""
        low, high = (0.000_02, 0.000_05) if source is target else self.delay_seconds
        return low + (high - low) * self._rng.random()

    def call(self, end: End, callback: Callable[..., None], *args: Any, when: float = 0.0) -> None:
        """Plan a call in the context of an end's owner."""
        context = end.context or end.process.context
        if when > self.loop.time():
            self.loop.call_at(when, callback, *args, context=context)
        else:
            self.loop.call_soon(callback, *args, context=context)

    def carry(self, end: End, part: bytes | None, *, extra: float = 0.0) -> None:
        """Bring a part, or the end of the stream, to the other end."""
        source, target = end.process.machine, end.other.process.machine
        if end.held or self.is_blocked(source, target):
            if not end.held:
                self.call(end, self._give_up, end, when=self.loop.time() + end.give_up_seconds)
            end.held.append(part)
            return
        if not end.other.process.is_alive:
            self.call(end, end.lose, _error(errno.ECONNRESET), when=self.loop.time() + extra)
            return
        when = end.plan_arrival(self.loop.time() + self.draw_delay(source, target) + extra)
        if part is not None and len(part) > 1 and self._rng.random() < _SPLIT_CHANCE:
            cut = self._rng.randrange(1, len(part))
            self.call(end.other, end.other.arrive, part[:cut], when=when)
            part = part[cut:]
            when = end.plan_arrival(when + self.draw_delay(source, target))
        self.call(end.other, end.other.arrive, part, when=when)

    def carry_reset(self, end: End) -> None:
        """Let the other end know that this one is gone, unless nothing arrives there."""
        source, target = end.process.machine, end.other.process.machine
        if end.other.is_open and end.other.process.is_alive:
            if self.is_blocked(source, target):
                return  # the peer finds out when it sends and gets no answer
            when = end.plan_arrival(self.loop.time() + self.draw_delay(source, target))
            self.call(end.other, end.other.lose, _error(errno.ECONNRESET), when=when)

    def _give_up(self, end: End) -> None:
        if end.held and end.is_open:
            end.held.clear()
            end.lose(_error(errno.ETIMEDOUT))

    # Connections.

    def make_port(self) -> int:
        """Return a port that is free on every machine."""
        self._ports += 1
        return self._ports

    def bind(self, listener: Any, host: str, port: int) -> Address:
        """Bind an address of the current machine.

        Raises:
            OSError: It is in use, or not the machine's.
        """
        process = running_process()
        ip = process.machine.ip
        if host not in (*_ANY, ip, "127.0.0.1"):
            raise _error(errno.EADDRNOTAVAIL)
        address = (ip, port or self.make_port())
        if address in self.listeners:
            raise _error(errno.EADDRINUSE)
        self.listeners[address] = listener
        return address

    async def connect(self, address: Address) -> End:
        """Return the near end of a new connection of the current process.

        Raises:
            OSError: Nothing listens there, or nothing answers.
        """
        process = running_process()
        near = process.machine
        host = near.ip if address[0] in ("127.0.0.1", "localhost") else address[0]
        far = self.find(host)
        if far is None:
            raise _error(errno.EHOSTUNREACH)
        for pause in _SYN_SECONDS:
            if not self.is_blocked(near, far) and not self.is_blocked(far, near):
                break
            await asyncio.sleep(pause)
        else:
            raise _error(errno.ETIMEDOUT)
        await asyncio.sleep(self.draw_delay(near, far))
        listener = self.listeners.get((host, address[1]))
        if listener is None or not listener.is_serving or not listener.process.is_alive:
            await asyncio.sleep(self.draw_delay(far, near))
            raise _error(errno.ECONNREFUSED)
        local = (near.ip, self.make_port())
        end = End(self, process, local, (host, address[1]))
        end.other = End(self, listener.process, (host, address[1]), local)
        end.other.context = listener.context
        end.other.other = end
        end.receiver = _Nobody()
        self.ends[end] = self.ends[end.other] = None
        self.call(end.other, listener.accept_end, end.other)
        await asyncio.sleep(self.draw_delay(far, near))
        if not end.is_open:
            raise _error(errno.ECONNRESET)
        return end


class _Nobody:
    """The receiver of an end that nobody uses yet: bytes wait there."""

    def handle_data(self) -> None:
        pass

    def handle_room(self) -> None:
        pass

    def handle_lost(self, error: OSError | None) -> None:
        pass


def running_process() -> Process:
    """Return the process whose code runs now.

    Raises:
        RuntimeError: The code that runs is not of a simulated process.
    """
    process = current_process()
    if process is None:
        raise RuntimeError("only code of a simulated process can use the simulated network")
    return process


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
