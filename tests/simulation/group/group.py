"""A group of members that lives through faults from a seed, and the checks of its promises."""

from __future__ import annotations

import random
from collections.abc import Callable

from rocketpost.errors import StoreBroken, StoreError

from ..store.world import PowerCut, World, small
from .servers import Parcel, Sent, Server

TICKS_TO_HEAL = 400
MESSAGES_PER_TICK = 300


class Group:
    """Members, the network between them, and what producers know; every choice is the seed's."""

    def __init__(self, rng: random.Random, *, count: int = 3, is_harmed: bool = False) -> None:
        self.rng = rng
        self.is_harmed = is_harmed
        self.network: list[Parcel] = []
        names = [f"n{number}" for number in range(count)]
        config = small()
        self.servers = [Server(name, names, config, self.network) for name in names]
        self.world = World(sizes=(0, 60, 700))
        self.lonely: set[str] = set()
        self.leaders: dict[int, str] = {}
        self.history = bytearray()
        """All bytes that any member has taken for committed."""
        self.acknowledged: list[Sent] = []
        self.counts: dict[str, int] = {}
        for server in self.servers:
            server.batch_bytes = rng.choice([1, 1500, 8192])
            server.start()

    # -- what happens

    def run(self, steps: int) -> None:
        happenings: list[tuple[int, Callable[[Server], None]]] = [
            (300, Server.tick),
            (600, self.deliver),
            (90, self.send),
            (60, Server.save),
            (60, Server.change),
            (120, Server.flush),
            (10, Server.save_progress),
            (5, Server.save_checkpoint),
            (8, self.hesitate),
            (2, self.part),
            (2, self.lose),
            (1, self.kill),
            (1, self.cut_power),
            (2, self.plan_power_cut),
            (1, self.plan_fault),
            *([(1, self.harm)] if self.is_harmed else []),
        ]
        weights = [weight for weight, _ in happenings]
        for _ in range(steps):
            (_, happening), *_ = self.rng.choices(happenings, weights)
            server = self.rng.choice(self.servers)
            if server.is_up:
                self.attempt(server, happening)
            elif self.rng.random() < 0.1:
                self.attempt(server, self.start)

    def attempt(self, server: Server, happening: Callable[[Server], None]) -> None:
        """Let something happen in which the power may be cut or the disk may fail."""
        try:
            happening(server)
        except PowerCut:
            self.count("power cuts in a call")
            server.stop(server.disk.after_power_cut(self.rng))
        except (StoreBroken, StoreError, OSError):
            self.count("failures")
            if server.is_up:
                server.fail()
                assert not server.is_leading
            if not server.is_up or self.rng.random() < 0.5:
                server.stop(server.disk.after_kill())
        self.look(server)

    def start(self, server: Server) -> None:
        was_replaced = server.is_replaced
        server.start()
        if server.is_harmed and not server.is_replaced:
            server.is_harmed = False  # it has repaired itself, or nothing of value was damaged
        elif server.is_replaced and not was_replaced:
            self.count("replaced")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def deliver(self, _: Server) -> None:
        """Deliver one message, most often the oldest; it may be lost or come twice."""
        if not self.network:
            return
        at = 0 if self.rng.random() < 0.8 else self.rng.randrange(len(self.network))
        parcel = self.network[at]
        if self.rng.random() > 0.03:
            del self.network[at]
        if self.rng.random() > 0.03 and not {parcel.sender, parcel.receiver} & self.lonely:
            receiver = next(each for each in self.servers if each.name == parcel.receiver)
            if receiver.is_up:
                self.attempt(receiver, lambda server: server.receive(parcel))

    def send(self, server: Server) -> None:
        leaders = [each for each in self.servers if each.is_leading]
        if leaders:
            chosen = self.rng.choice(leaders)
            self.attempt(chosen, lambda leader: leader.send(self.world, self.rng))

    def hesitate(self, server: Server) -> None:
        server.is_eager = self.rng.random() < 0.5
        server.save()
        while server.is_eager and server._changes:
            server.change()

    def part(self, server: Server) -> None:
        """Cut one member off, or nobody any more."""
        self.lonely = {server.name} if self.rng.random() < 0.6 else set()

    def lose(self, _: Server) -> None:
        """Lose many messages."""
        self.network[:] = [each for each in self.network if self.rng.random() < 0.5]

    def kill(self, server: Server) -> None:
        self.count("kills")
        server.stop(server.disk.after_kill())

    def cut_power(self, server: Server) -> None:
        """Cut the power of one member, or of all."""
        servers = self.servers if self.rng.random() < 0.3 else [server]
        for each in servers:
            self.count("power cuts")
            each.stop(each.disk.after_power_cut(self.rng))

    def plan_power_cut(self, server: Server) -> None:
        at = server.disk.calls + self.rng.randrange(1, 60)

        def fault(number: int, _name: str, _path: str) -> int | None:
            if number >= at:
                raise PowerCut
            return None

        server.disk.fault = fault

    def plan_fault(self, server: Server) -> None:
        """Let one file operation fail, or the disk be full for a while."""
        at = server.disk.calls + self.rng.randrange(1, 60)
        code = self.rng.choice([5, 28])
        server.disk.fault = lambda number, _name, _path: code if number == at else None

    def harm(self, server: Server) -> None:
        """Stop a member, and damage one of its files; never two members at a time."""
        if any(each.is_harmed for each in self.servers):
            return
        server.stop(server.disk.after_kill())
        disk = server.disk
        path = self.rng.choice([path for path in disk.paths() if disk.read_bytes(path)])
        size = len(disk.read_bytes(path))
        server.is_harmed = True
        self.count("damages")
        # A start does not read all of the log again: other damage to it is found by readers.
        kind = self.rng.randrange(2 if "/commitlog/" in path else 4)
        if kind == 0:
            disk.lose(path)
        elif kind == 1:
            disk.cut_short(path, self.rng.randrange(size))
        elif kind == 2:
            disk.flip(path, self.rng.randrange(8 * size))
        else:
            disk.zero(path, self.rng.randrange(size), size)

    # -- the end

    def heal(self) -> None:
        """End all faults: a leader is elected, and everybody gets the same log."""
        self.lonely = set()
        for server in self.servers:
            if server.is_up and server.node.has_failed:
                server.stop(server.disk.after_kill())
            server.disk.fault = None
            server.is_eager = True
            if not server.is_up:
                self.start(server)
            server.save()
            while server._changes:
                server.change()
        for number in range(TICKS_TO_HEAL):
            for server in self.servers:
                server.tick()
                server.flush()
                self.look(server)
            for _ in range(MESSAGES_PER_TICK):
                if not self.network:
                    break
                parcel = self.network.pop(0)
                receiver = next(each for each in self.servers if each.name == parcel.receiver)
                receiver.receive(parcel)
                self.look(receiver)
            if number > 100 and self.is_quiet():
                break
        assert self.is_quiet(), "the group does not come to rest"

    def is_quiet(self) -> bool:
        commits = {server.node.commit for server in self.servers}
        ends = {server.node.log.end for server in self.servers}
        return commits == ends and len(ends) == 1 and ends != {0}

    # -- checks

    def look(self, server: Server) -> None:
        """Check what a member has done since the last look."""
        if not server.is_up:
            return
        while server.elected:
            term = server.elected.popleft()
            assert self.leaders.setdefault(term, server.name) == server.name, "two leaders"
            first = server.node.log.first
            kept = server.log()[first : len(self.history)]
            assert kept == self.history[first:], "a leader lacks committed bytes"
        while server.commits:
            self.note_commit(server, server.commits.popleft())
        self.acknowledged += server.acknowledged
        server.acknowledged = []
        store = server.running.store
        assert store.confirmed_position <= server.node.commit, "visible before it is committed"

    def note_commit(self, server: Server, position: int) -> None:
        log = server.log()[:position]
        assert len(log) == position, "committed beyond the log"
        first = server.node.log.first
        common = min(len(log), len(self.history))
        assert log[first:common] == self.history[first:common], "two histories"
        self.history += log[len(self.history) :]

    def check_end(self) -> None:
        """Check that nothing acknowledged is lost, and that all members show the same."""
        for server in self.servers:
            log, first = server.log(), server.node.log.first
            assert log[first:] == self.history[first:]
            for sent in self.acknowledged:
                is_there = sent.body in log[sent.position : sent.end] or sent.position < first
                assert is_there, f"acknowledged and lost: {sent}"
        shown = [
            sorted(
                (queue.topic, queue.queue_id, queue.end)
                for queue in server.running.store.queues
                if queue.end  # one whose messages were cut off may stay, without any
            )
            for server in self.servers
        ]
        assert all(each == shown[0] for each in shown)
