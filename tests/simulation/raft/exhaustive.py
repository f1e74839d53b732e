"""A small group in which everything that can happen next is tried, up to a number of steps.

Time stands still: any message that is under way, any sync and any save may be the next to happen,
or never happens. Besides, a node may lose patience with its leader, a leader may be sent a message,
and a node may lose power, each a few times. A group is copied as bytes, which also tell whether it
has been seen before.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from rocketpost.raft.config import RaftConfig
from rocketpost.raft.messages import Members

from .checks import Checks
from .server import Sent, Server

NAMES = "abc"


class Fixed:
    """Chance that decides nothing: the shortest delay, the smallest record, the worst power cut."""

    def random(self) -> float:
        return 0.0

    def choice(self, options: Any) -> Any:
        return options[0]

    def randint(self, a: int, _b: int) -> int:
        return a


class Patient(Fixed):
    """Chance of a node: it waits as long as it may."""

    def randint(self, _a: int, b: int) -> int:
        return b


class Model:
    """A group without time, as servers see one; also their scheduler and their network."""

    def __init__(self, *, timeouts: int, writes: int, cuts: int) -> None:
        self.timeouts = timeouts
        self.writes = writes
        self.cuts = cuts
        self.pending: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.rng = Fixed()
        self.config = RaftConfig(heartbeat_ticks=1, election_ticks=3, election_ticks_max=5)
        self.contact_ticks = 100
        self.scheduler = self.network = self
        self.now_ms = 0
        self.trace = None
        self.is_async = False
        self.records = 0
        self.servers: dict[str, Server] = {}
        self.checks = Checks(self.servers)
        for name in NAMES:
            self.servers[name] = Server(name, self, members=Members(frozenset(NAMES)))  # type: ignore[arg-type]
        for server in self.servers.values():
            server.start()

    # -- for servers

    def new_chance(self) -> Patient:
        return Patient()

    def note(self, *_args: object) -> None:
        """Keep no trace."""

    def after(self, _delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        if call.__name__ != "_tick_again":
            self.pending.append((call, args))

    def later(self, _limit_ms: int, call: Callable[..., None], *args: Any) -> None:
        self.pending.append((call, args))

    def send(self, source: str, target: str, sent: Sent) -> None:
        self.pending.append((self.servers[target].receive, (source, sent)))

    def next_record(self) -> int:
        self.records += 1
        return self.records

    # -- what may happen

    def moves(self) -> Iterator[tuple[str, Any]]:
        """Yield everything that may happen next."""
        yield from (("happen", number) for number in range(len(self.pending)))
        for name, server in self.servers.items():
            if self.timeouts and not server.is_leader:
                yield "lose_patience", name
            if self.writes and server.is_leader:
                yield "write", name
            if self.cuts:
                yield "cut_power", name

    def happen(self, number: int) -> None:
        call, args = self.pending.pop(number)
        call(*args)

    def lose_patience(self, name: str) -> None:
        """Let a node campaign, after a time in which nobody has heard a leader."""
        self.timeouts -= 1
        for other, server in self.servers.items():
            ticks = self.config.election_ticks_max if other == name else self.config.election_ticks
            for _ in range(0 if server.is_leader else ticks):
                server.tick()

    def write(self, name: str) -> None:
        self.writes -= 1
        self.servers[name].write(1)

    def cut_power(self, name: str) -> None:
        self.cuts -= 1
        self.servers[name].stop(power=True)
        self.servers[name].start()

    def settle(self) -> None:
        """Let everything happen that is under way, in order."""
        while self.pending:
            self.happen(0)

    def to_bytes(self) -> bytes:
        self.pending.sort(key=describe)
        return pickle.dumps(self)


def describe(event: tuple[Callable[..., None], tuple[Any, ...]]) -> str:
    call, args = event
    return f"{call.__self__.name} {call.__name__} {args}"  # type: ignore[attr-defined]


def digest(state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=16).digest()


def explore(start: Model, *, depth: int) -> int:
    """Try all orders of at most ``depth`` moves; return the number of different groups seen.

    Raises:
        Violation: A check failed. Its note lists the moves that lead there.
    """
    first = start.to_bytes()
    seen = {digest(first)}
    level: list[tuple[bytes, tuple[str, ...]]] = [(first, ())]
    for _ in range(depth):
        next_level = []
        for state, path in level:
            for move, argument in list(pickle.loads(state).moves()):
                model: Model = pickle.loads(state)
                is_pending = move == "happen"
                step = describe(model.pending[argument]) if is_pending else f"{move} {argument}"
                try:
                    getattr(model, move)(argument)
                except AssertionError as error:
                    error.add_note("\n".join([*path, step]))
                    raise
                reached = model.to_bytes()
                if (mark := digest(reached)) not in seen:
                    seen.add(mark)
                    next_level.append((reached, (*path, step)))
        level = next_level
    return len(seen)
