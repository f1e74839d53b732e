"""A group of members that lives through faults from a seed, and the checks of its promises."""

from __future__ import annotations

import random
from collections.abc import Callable

from rocketpost.errors import StoreBroken, StoreError
from rocketpost.raft.members import ChangeKind, MemberChange
from rocketpost.server.group.life import log_scrub

from ..store.world import PowerCut, World, small
from .servers import Parcel, Sent, Server

TICKS_TO_HEAL = 400
MESSAGES_PER_TICK = 300
BLOCK_BYTES = 1024
"""Bytes that members compare at once here; a part of a segment."""


class Group:
    """Members, the network between them, and what producers know; every choice is the seed's."""

    def __init__(
        self,
        rng: random.Random,
        *,
        count: int = 3,
        is_harmed: bool = False,
        is_changing: bool = False,
    ) -> None:
        self.rng = rng
        self.is_harmed = is_harmed
        self.is_changing = is_changing
        self.network: list[Parcel] = []
        names = [f"n{number}" for number in range(count)]
        config = small()
        spares = [f"n{count + number}" for number in range(2 if is_changing else 0)]
        self.servers = [
            Server(name, names, config, self.network, self.find) for name in names + spares
        ]
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

    def find(self, name: str) -> Server:
        return next(each for each in self.servers if each.name == name)

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
            (4, self.replace_log),
            *([(1, self.harm), (2, self.flip_bit), (20, self.scrub)] if self.is_harmed else []),
            *([(2, self.flip_and_cut_power)] if self.is_harmed else []),
            *([(6, self.change_members), (6, self.expire)] if self.is_changing else []),
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
        if server.is_harmed and not server.running.state.suspect:
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
            receiver = self.find(parcel.receiver)
            if receiver.is_up:
                self.attempt(receiver, lambda server: server.receive(parcel))

    def send(self, server: Server) -> None:
        leaders = [each for each in self.servers if each.is_leading]
        if leaders:
            chosen = self.rng.choice(leaders)
            self.attempt(chosen, lambda leader: leader.send(self.world, self.rng))

    def replace_log(self, server: Server) -> None:
        if server.wants_log_of is not None:
            server.begin_again(server.node.leader or server.wants_log_of)

    def change_members(self, server: Server) -> None:
        """Ask a leader for a change; three voters stay, so that one may be lost."""
        leaders = [each for each in self.servers if each.is_leading]
        if not leaders:
            return
        chosen = self.rng.choice(leaders)
        change = MemberChange(
            self.rng.choice(list(ChangeKind)), self.rng.choice([each.name for each in self.servers])
        )
        voters = chosen.node.members.voters
        if change.kind is not ChangeKind.REMOVE or change.node not in voters or len(voters) > 3:
            self.attempt(chosen, lambda leader: leader.propose(change))

    @property
    def newest_first(self) -> int:
        """The highest position at which the log of a running member begins."""
        return max(each.running.store.first_position for each in self.servers if each.is_up)

    def expire(self, server: Server) -> None:
        if not any(each.flips for each in self.servers):
            server.expire()

    def flip_bit(self, server: Server) -> None:
        """Flip a bit in the body of an old message, unless another member is harmed."""
        if any(each.is_harmed or each.flips for each in self.servers):
            return
        if not self.acknowledged or server.running.state.suspect:
            return
        # Without a majority that has the bytes, nobody could tell which are right.
        voters = [each for each in self.servers if each.name in server.node.members.voters]
        if not all(each.is_up and not each.running.state.suspect for each in voters):
            return
        least = min(int(each.running.store.durable_position) for each in voters)
        kept = [
            each
            for each in self.acknowledged
            if each.position >= self.newest_first and each.end <= least
        ]
        if not kept:
            return
        sent = self.rng.choice(kept)
        if sent.end <= server.node.commit:
            self._flip(server, sent)

    def flip_and_cut_power(self, server: Server) -> None:
        """Flip a bit in a message that this member has just acknowledged, and cut its power.

        The other members may lack the message but for one, so it is lost if this one votes.
        """
        if any(each.is_harmed or each.flips for each in self.servers):
            return
        durable = min(int(server.running.store.durable_position), server.node.log.persisted)
        kept = [each for each in self.acknowledged[-5:] if each.end <= durable]
        if kept and not server.running.state.suspect and self._flip(server, self.rng.choice(kept)):
            server.is_harmed = True
            self.count("flips before a power cut")
            server.stop(server.disk.after_power_cut(self.rng))

    def _flip(self, server: Server, sent: Sent) -> bool:
        """Flip a bit in the body of a message, if the member has it."""
        log = server.log()
        at = log.find(sent.body, sent.position, sent.end)
        if not sent.body or at < 0:
            return False
        segment = server.running.store.segments.find(at)
        assert segment is not None
        position = at + self.rng.randrange(len(sent.body))
        server.disk.flip(segment.path, 8 * (position - segment.start) + self.rng.randrange(8))
        server.flips[position] = log[position]
        self.count("flips")
        return True

    def scrub(self, server: Server) -> None:
        """Compare a block with all others, as members do in the background."""
        positions = [each for other in self.servers for each in other.flips]
        if not positions or server.running.state.suspect:
            return
        begin = self.rng.choice(positions) // BLOCK_BYTES * BLOCK_BYTES
        newest = max(int(each.node.commit) for each in self.servers if each.is_up)
        end = min(begin + BLOCK_BYTES, newest)  # readers find damage at the end of the log, too
        if end <= begin:
            return
        digests = {
            each.name: each.running.old_log.digest_blocking(begin, end)
            for each in self.servers
            if each.is_up
            and not each.running.state.suspect
            and each.running.store.first_position <= begin
            and end <= min(each.node.commit, each.running.store.durable_position)
        }
        own = digests.get(server.name)
        right = log_scrub.choose_right(digests, server.node.members.voters)
        if own is None or own == right:
            return
        if right is None:
            self._take_sound(server)
            return
        source = next(self.find(name) for name, digest in digests.items() if digest == right)
        data = source.running.old_log.read_blocking(begin, end)
        server.running.old_log.repair_blocking(begin, data)
        self.count("repairs")

    def _take_sound(self, server: Server) -> None:
        """Replace a record that fails its checks by that of another voter, as members do."""
        for position in list(server.flips):
            sent = next(each for each in self.acknowledged if each.position <= position < each.end)
            place = (sent.position, sent.end)
            if sent.position < server.running.store.first_position:
                continue
            own = server.running.old_log.read_blocking(*place)
            if log_scrub.find_damaged(own, sent.position) is None:
                continue
            for other in self.servers:
                if other is server or not other.is_up or other.running.state.suspect:
                    continue
                end = min(other.node.commit, other.running.store.durable_position)
                if other.running.store.first_position <= sent.position < sent.end <= end:
                    data = other.running.old_log.read_blocking(*place)
                    if log_scrub.find_damaged(data, sent.position) is None:
                        server.running.old_log.repair_blocking(sent.position, data)
                        self.count("sound records taken")

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
        if any(each.is_harmed or each.flips for each in self.servers):
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
                self.replace_log(server)
                self.scrub(server)
                self.look(server)
            for _ in range(MESSAGES_PER_TICK):
                if not self.network:
                    break
                parcel = self.network.pop(0)
                receiver = self.find(parcel.receiver)
                receiver.receive(parcel)
                self.look(receiver)
            if number > 100 and self.is_quiet():
                break
        assert self.is_quiet(), "the group does not come to rest"

    @property
    def members(self) -> list[Server]:
        """The servers that are members, as the leader of the newest term knows."""
        leaders = [each for each in self.servers if each.is_leading]
        if not leaders:
            return self.servers
        voters, learners = max(leaders, key=lambda each: each.node.term).node.members
        return [each for each in self.servers if each.name in voters | learners]

    def is_quiet(self) -> bool:
        members = self.members
        commits = {server.node.commit for server in members}
        ends = {server.node.log.end for server in members}
        is_whole = not any(server.flips and server.log() for server in members if server.flips)
        is_sound = not any(server.node.is_suspect for server in members)
        return commits == ends and len(ends) == 1 and ends != {0} and is_whole and is_sound

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
        for server in self.members:
            log, first = server.log(), server.node.log.first
            assert not server.flips, "damage is left"
            assert log[first:] == self.history[first:]
            for sent in self.acknowledged:
                is_there = sent.body in log[sent.position : sent.end] or sent.position < first
                assert is_there, f"acknowledged and lost: {sent}"
        queues = {
            (queue.topic, queue.queue_id)
            for server in self.members
            for queue in server.running.store.queues
            if queue.end  # one whose messages were cut off may stay, without any
        }
        shown = [
            {key: next_offset(server, *key) for key in sorted(queues)} for server in self.members
        ]
        assert all(each == shown[0] for each in shown)
        for server in self.servers:
            for what, number in server.counts.items():
                self.counts[what] = self.counts.get(what, 0) + number


def next_offset(server: Server, topic: str, queue_id: int) -> int:
    """Return the offset that the next message of a queue gets."""
    store = server.running.store
    queue = store.queue(topic, queue_id)
    if queue is not None:
        return int(queue.end)
    return store.deletions._parts.deleted_topics.next_offset(topic, queue_id)
