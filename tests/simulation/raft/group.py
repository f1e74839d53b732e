"""A group of Raft nodes that lives through faults from a seed, and is then healed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rocketpost.raft.config import TICK_MS, RaftConfig
from rocketpost.raft.members import NOBODY
from rocketpost.raft.messages import Members
from rocketpost.testing.sim.network import MessageNetwork
from rocketpost.testing.sim.scheduler import Scheduler

from . import faults as all_faults
from .checks import ACKNOWLEDGED_KEPT, LIVENESS, Checks
from .disk import Record
from .faults import Fault
from .server import Sent, Server

NAMES = "abcdefg"

CONFIGS = (
    RaftConfig(window_bytes=2000),
    RaftConfig(heartbeat_ticks=1, election_ticks=3, election_ticks_max=8, window_bytes=300),
    RaftConfig(window_bytes=2000, gather_bytes=100, spare_bytes=400),
    RaftConfig(election_ticks=7, election_ticks_max=12, window_bytes=300, spare_bytes=300),
)
"""The default times, short ones, with which more terms fit into a schedule, and gathered bytes."""

WORD = re.compile(r"\w+")
SETS = re.compile(r"frozenset\(\{?([^})]*)\}?\)")
"""Sets in a line of the trace; they have no order of their own."""

SCHEDULE_MS = 6000
"""Virtual time of the faults of one schedule."""

ELECTIONS_MAX = 10
"""Number of election time-outs within which a healed group has a leader."""

CATCH_UP_MS = 10_000
"""Time within which all members then have all of the log."""


class Group:
    """Nodes, their network and their checks; every choice is the seed's."""

    def __init__(
        self,
        seed: int,
        *,
        size: int = 0,
        faults: Sequence[Fault] | None = None,
        is_async: bool | None = None,
        only: Iterable[str] = (),
        traced: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.trace: list[str] | None = [] if traced else None
        self.scheduler = Scheduler()
        self.network: MessageNetwork[str, Sent] = MessageNetwork(self.scheduler, rng, self._deliver)
        self.is_async = rng.random() < 0.2 if is_async is None else is_async
        """Whether written bytes count as safe; no power is cut then."""

        self.faults = self._some_faults() if faults is None else list(faults)
        self.has_damage = all_faults.damage in self.faults
        self.config = rng.choice(CONFIGS)
        self.contact_ticks = 2 * self.config.election_ticks + 2
        """Longest time for which a leader may lead without hearing from a majority."""

        self.pause_ms = rng.choice([200, 600, 1500])
        """Longest time between two faults."""

        self.servers: dict[str, Server] = {}
        self.checks = Checks(self.servers, only=only)
        self.records = 0
        self.outage_ms = rng.choice([200, 1500])
        """Longest time for which a node is down or cut off by one fault."""

        self.is_healing = False
        self.is_quiet = False
        """Whether producers send nothing."""

        count = size or rng.choice([3, 3, 3, 5])
        spares = 2 if all_faults.change_members in self.faults else 0
        self.names = NAMES[: count + spares]
        members = Members(frozenset(NAMES[:count]))
        for name in self.names:
            is_member = name in members.voters
            self.servers[name] = Server(name, self, members=members if is_member else NOBODY)
        for server in self.servers.values():
            server.start()

    def _some_faults(self) -> list[Fault]:
        kinds = self.rng.sample(all_faults.ALL, self.rng.randint(1, 6))
        return [fault for fault in kinds if not (self.is_async and fault is all_faults.damage)]

    # -- for servers and faults

    def note(self, who: object, text: str, *args: object) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            line = f"{self.scheduler.now_ms:6} {who!s:>8} {text % args}"
            self.trace.append(
                SETS.sub(lambda found: "+".join(sorted(WORD.findall(found[1]))), line)
            )

    def later(self, limit_ms: int, call: Callable[..., None], *args: Any) -> None:
        """Call something at a random time within ``limit_ms``."""
        self.scheduler.after(1 + int(self.rng.random() * limit_ms), call, *args)

    def new_chance(self) -> random.Random:
        """Return the chance of a node that starts."""
        return random.Random(self.rng.random())

    def next_record(self) -> int:
        self.records += 1
        return self.records

    def leaders(self) -> list[Server]:
        """Return all nodes that take themselves for the leader."""
        return [server for server in self.servers.values() if server.is_leader]

    def target(self) -> str:
        """Choose the node for a fault: a leader in half of the cases."""
        leaders = self.leaders()
        if leaders and self.rng.random() < 0.5:
            return self.rng.choice(leaders).name
        return self.rng.choice(list(self.servers))

    def _deliver(self, source: str, target: str, sent: Sent) -> None:
        self.servers[target].receive(source, sent)

    # -- the schedule

    def run(self, span_ms: int = SCHEDULE_MS) -> None:
        """Live through faults, and then heal."""
        self.live(span_ms)
        self.heal()

    def live(self, span_ms: int) -> None:
        end_ms = self.scheduler.now_ms + span_ms
        self._send()
        self._strike()
        self.scheduler.run_until(end_ms)

    def _strike(self) -> None:
        if self.is_healing:
            return
        if self.faults:
            fault = self.rng.choice(self.faults)
            self.note("fault", "%s", fault.__name__)
            fault(self)
        self.later(self.pause_ms, self._strike)

    def _send(self) -> None:
        """Let producers send to every node that takes itself for the leader."""
        if self.is_healing:
            return
        for server in () if self.is_quiet else self.leaders():
            server.write(self.rng.choice([1, 1, 2, 5]))
        self.later(self.rng.choice([20, 100, 300]), self._send)

    # -- the end

    def heal(self) -> None:
        """End all faults; a leader must be elected, and everything must be committed."""
        self.is_healing = True
        self.network.heal()
        self.note("all", "is healed")
        for server in self.servers.values():
            server.heal()
        start_ms = self.scheduler.now_ms
        limit_ms = ELECTIONS_MAX * self.config.election_ticks_max * TICK_MS
        self.expect(self.has_leader, limit_ms, "no leader is elected")
        self.expect(self.is_equal, CATCH_UP_MS, "not everything is committed")
        self.note("all", "is well after %s ms", self.scheduler.now_ms - start_ms)
        self._check_nothing_is_lost()

    def expect(self, condition: Callable[[], bool], limit_ms: int, text: str) -> None:
        end_ms = self.scheduler.now_ms + limit_ms
        while not condition():
            if self.scheduler.now_ms >= end_ms:
                states = "; ".join(str(server) for server in self.servers.values())
                self.checks.fail(LIVENESS, f"{text} within {limit_ms} ms of peace: {states}")
                return
            self.scheduler.run_until(self.scheduler.now_ms + TICK_MS)

    def has_leader(self) -> bool:
        """Tell whether one node leads and all members of its group follow it."""
        leader = self.leader()
        return leader is not None and all(
            self.servers[name].leader == leader.name for name in leader.members.voters
        )

    def leader(self) -> Server | None:
        """Return the leader of the newest term."""
        return max(self.leaders(), key=lambda server: server.term, default=None)

    def is_equal(self) -> bool:
        """Tell whether all members have the leader's log and know all of it to be committed."""
        leader = self.leader()
        if leader is None:
            return False
        members = [self.servers[name] for group in leader.members for name in group]
        last = leader.log.last
        return all(
            member.log.last is last and member.commit == leader.log.end for member in members
        )

    def _check_nothing_is_lost(self) -> None:
        leader = self.leader()
        if leader is None:
            return
        lost: list[Record] = [
            record for record in self.checks.chain.values() if not leader.log.has(record)
        ]
        if lost:
            self.checks.fail(ACKNOWLEDGED_KEPT, f"{lost[:5]} of {len(lost)} lost records")
