"""A broker group that lives through faults from a seed, and the checks of what it promises."""

from __future__ import annotations

import copy
import errno
import random
from collections.abc import Callable
from typing import Any

from rocketpost.codec.record import MAGIC_BLANK
from rocketpost.errors import StoreBroken, StoreError
from rocketpost.store.config import FlushMode
from rocketpost.store.log.commit_log import BLANK, BLANK_BYTES
from rocketpost.testing.sim.disk import SimulatedDisk

from ..store.world import PowerCut, small
from .network import Link
from .nodes import JavaSlave, Master, Producers, Slave

STEPS_TO_HEAL = 4000


class Group:
    """A master and its slaves; every choice is the seed's."""

    def __init__(
        self,
        rng: random.Random,
        *,
        slaves: int = 1,
        java: bool = False,
        flush_mode: FlushMode = FlushMode.SYNC_FLUSH,
        sends_flushed: bool = True,
        append_checksum: bool = False,
        **sizes: int,
    ) -> None:
        self.rng = rng
        self.now_ms = 0
        self.flush_mode = flush_mode
        # Damage to the name of a checksum is noticed only where every record must have one.
        self.config = small(
            flush_mode=flush_mode,
            append_checksum=append_checksum,
            require_checksum=append_checksum,
        )
        self.master = Master(
            Producers(config=self.config),
            batch_bytes=sizes.get("batch_bytes", rng.choice([50, 700, 5000])),
            window_bytes=sizes.get("window_bytes", rng.choice([1, 3000, 20_000])),
            needed=2 if java else 1,  # so that one of ours is among them
            sends_flushed=sends_flushed,
        )
        self.ours = [Slave(number + 1, self.config) for number in range(slaves)]
        self.java = JavaSlave(self.config) if java else None
        self.is_cut: Master | Slave | None = None
        self.master.start()
        for slave in self.ours:
            slave.start()

    @property
    def slaves(self) -> list[Slave | JavaSlave]:
        return [*self.ours, *([self.java] if self.java is not None else [])]

    # -- what happens

    def run(self, steps: int) -> None:
        """Take random steps, and check after each."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (8, self.send),
            (6, self.flush_master),
            (20, self.pump_master),
            (20, self.pump_slave),
            (6, self.flush_slave),
            (4, self.reconnect),
            (2, self.cut),
            (1, self.connect_twice),
            (1, self.stop_slave),
            (1, self.stop_master),
            (2, self.plan_power_cut),
            (1, self.save),
            (1, self.fill_disk),
            (4, self.wait),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            (_, action), *_ = self.rng.choices(actions, weights)
            self.attempt(action)
            self.check()

    def attempt(self, action: Callable[[], None]) -> None:
        """Do something in which the power may be cut."""
        try:
            action()
        except PowerCut:
            assert self.is_cut is not None
            node, self.is_cut = self.is_cut, None
            self.stop(node, with_power=True)

    def send(self) -> None:
        if self.master.is_up:
            try:
                self.master.world.send(self.rng, self.rng.randrange(1, 6))
            except StoreBroken:
                self.stop(self.master, with_power=False)
            except StoreError:
                pass

    def flush_master(self) -> None:
        if self.master.is_up:
            self.master.world.flush()
            self.master.acknowledge()

    def pump_master(self) -> None:
        if self.master.is_up:
            self.master.pump(self.now_ms, self.rng)
            self.master.acknowledge()

    def pump_slave(self) -> None:
        slave = self.rng.choice(self.slaves)
        if slave.is_up:
            self._pump(slave)

    def _pump(self, slave: Slave | JavaSlave) -> None:
        try:
            slave.pump(self.now_ms, self.rng)
        except StoreBroken:
            assert isinstance(slave, Slave)
            self.stop(slave, with_power=False)

    def flush_slave(self) -> None:
        slave = self.rng.choice(self.ours)
        if slave.is_up:
            slave.flush()

    def save(self) -> None:
        slave = self.rng.choice(self.ours)
        if slave.is_up:
            slave.running.save_blocking()
            slave._keep()
        if self.master.is_up:
            self.master.world.save()

    def reconnect(self) -> None:
        slave = self.rng.choice(self.slaves)
        if slave.is_up and slave.link is None and self.master.is_up:
            self.connect(slave)

    def connect_twice(self) -> None:
        """Connect again while the master takes the old connection for open."""
        slave = self.rng.choice(self.slaves)
        if slave.link is not None and slave.is_up and self.master.is_up:
            slave.link.cut(self.rng, tell_master=False)
            slave.link = None
            self.connect(slave)

    def connect(self, slave: Slave | JavaSlave) -> None:
        if isinstance(slave, JavaSlave) and not self.may_connect(slave):
            return
        link = Link(
            slave.host,
            slave.broker_id,
            capacity=self.rng.choice([100, 3000, 100_000]),
            speed=self.rng.choice([5, 300, 20_000]),
        )
        slave.connect(self.master, link, self.now_ms)
        if isinstance(slave, Slave) and slave.refusal:
            self.start_over(slave)

    def may_connect(self, slave: JavaSlave) -> bool:
        """Empty a Java slave that would go on with other bytes; nothing in the stream shows it."""
        if self.copied(slave) < slave.end <= self.master.end:
            slave.start_at, slave.data = -1, b""
        return True

    def start_over(self, slave: Slave) -> None:
        """Do what the refusal says: start again with an empty directory."""
        assert self.copied(slave) < slave.end or slave.end > self.master.end, slave.refusal
        self.stop(slave, with_power=False)
        slave.disk = self.new_disk()
        slave.kept = 0

    def new_disk(self) -> SimulatedDisk:
        return Slave(1, self.config).disk

    def cut(self) -> None:
        slave = self.rng.choice(self.slaves)
        if slave.link is not None:
            slave.link.cut(self.rng, tell_master=self.rng.random() < 0.7)

    def wait(self) -> None:
        self.now_ms += self.rng.choice([1, 500, 3000, 8000])

    def stop_slave(self) -> None:
        slave = self.rng.choice(self.ours)
        if slave.is_up:
            self.stop(slave, with_power=self.may_lose_power and self.rng.random() < 0.5)
        else:
            slave.start()

    def stop_master(self) -> None:
        if self.master.is_up:
            self.stop(self.master, with_power=self.may_lose_power and self.rng.random() < 0.5)
        else:
            self.master.start()

    @property
    def may_lose_power(self) -> bool:
        return self.flush_mode is FlushMode.SYNC_FLUSH

    def plan_power_cut(self) -> None:
        """Cut the power of a node in one of its next file operations."""
        if not self.may_lose_power:
            return
        nodes: list[Master | Slave] = [self.master, *self.ours]
        node = self.rng.choice(nodes)
        disk = node.world.disk if isinstance(node, Master) else node.disk
        last = disk.calls + self.rng.randrange(1, 40)

        def fault(number: int, _name: str, _path: str) -> None:
            if number >= last:
                disk.fault = None
                self.is_cut = node
                raise PowerCut

        disk.fault = fault

    def fill_disk(self) -> None:
        """Let the next write to the log of a slave fail, for lack of room or for good."""
        slave = self.rng.choice(self.ours)
        code = self.rng.choice([errno.ENOSPC, errno.EIO])
        disk = slave.disk

        def fault(_number: int, name: str, path: str) -> int | None:
            if name not in {"pwrite", "fallocate"} or "/commitlog/" not in path:
                return None
            disk.fault = None
            return code

        if slave.is_up and disk.fault is None:
            disk.fault = fault

    def stop(self, node: Master | Slave, *, with_power: bool) -> None:
        """Kill a node, or cut its power, and start it again some time later."""
        if isinstance(node, Master):
            node.world.disk.fault = None
            node.stopped()
            if with_power:
                node.world.lose_power(self.rng)
            else:
                node.world.kill()
            return
        node.disk.fault = None
        disk = node.disk.after_power_cut(self.rng) if with_power else node.disk.after_kill()
        node.stopped(disk, tell_master=not with_power)

    # -- what must hold

    def copied(self, slave: Slave | JavaSlave) -> int:
        """Return the position up to which a slave has the master's bytes."""
        first, log = self.master.log()
        start, data = slave.log()
        assert start >= first, "nothing expires here"
        theirs = self._without_padding(log[start - first :][: len(data)], start)
        data = self._without_padding(data, start)
        if theirs == data:
            return start + len(data) if data else 0
        same = next(
            (at for at, (one, other) in enumerate(zip(theirs, data, strict=False)) if one != other),
            min(len(theirs), len(data)),
        )
        return start + same

    def _without_padding(self, data: bytes, start: int) -> bytes:
        """Return bytes of a log with zeros between the last record of a segment and its end.

        No reader looks at them, and RocketMQ's broker leaves there what its buffer held.
        """
        size, at, found = self.config.segment_bytes, 0, bytearray(data)
        while at + BLANK_BYTES <= len(found):
            length, magic = BLANK.unpack_from(found, at)
            if magic == MAGIC_BLANK:
                end = min((start + at) // size * size + size - start, len(found))
                found[at + BLANK_BYTES : end] = bytes(end - at - BLANK_BYTES)
            if length <= 0:
                break
            at += length
        return bytes(found)

    def check(self) -> None:
        if not self.master.is_up:
            return
        copies = sorted((self.copy_of(slave) for slave in self.slaves), reverse=True)
        for count, copied in enumerate([*copies, 0], start=1):
            counted = self.master.acks.position_of(count)
            assert counted <= copied, f"{count} slaves count with {counted}, but have {copies}"
        connected = len(self.master.streams)
        assert self.master.acks.in_sync(0, 1) <= connected, "a slave counts that is not connected"

    def copy_of(self, slave: Slave | JavaSlave) -> int:
        """Return the position up to which a slave keeps the master's bytes, whatever happens."""
        if not slave.is_up:
            return slave.kept
        return min(slave.kept, self.copied(slave))

    def heal(self) -> None:
        """Let everything run without faults until all slaves have all of the log."""
        for _ in range(3):  # as each may be stopped once more by a fault that is planned
            self.attempt(self.start_all)
        for slave in self.slaves:
            if slave.link is not None:
                slave.link.cut(self.rng)
                slave.link.speed = 5000
        for _ in range(STEPS_TO_HEAL):
            self.attempt(self.step_in_turn)
            self.check()
            if self.is_healed():
                return
        ends = [slave.end for slave in self.slaves]
        stuck = [stream.sender.stuck for stream in self.master.streams.values()]
        raise AssertionError(f"the log ends at {self.master.end}, the slaves' at {ends}; {stuck}")

    def start_all(self) -> None:
        if not self.master.is_up:
            self.master.start()
        self.master.world.disk.fault = None
        for slave in self.ours:
            if not slave.is_up:
                slave.start()
            slave.disk.fault = None

    def step_in_turn(self) -> None:
        self.now_ms += 300
        self.start_all()
        self.flush_master()
        self.pump_master()
        for slave in self.slaves:
            if slave.link is None:
                if isinstance(slave, JavaSlave) and slave.end > self.master.end:
                    slave.start_at, slave.data = -1, b""
                self.connect(slave)
                if slave.link is not None:
                    slave.link.speed, slave.link.down.capacity = 5000, 5000
            if slave.is_up:
                self._pump(slave)
            if isinstance(slave, Slave) and slave.is_up:
                slave.flush()

    def is_healed(self) -> bool:
        end = self.master.store.written_position
        return all(message.is_acked for message in self.master.world.sent) and all(
            slave.is_up and slave.link is not None and self.copied(slave) == end == slave.end
            for slave in self.slaves
        )

    def lose_master(self) -> None:
        """Lose the master's disk, make a slave the master, and check what it has."""
        candidates = [slave for slave in self.ours if not slave.refusal]
        for slave in candidates:
            self.stop(slave, with_power=self.may_lose_power)
        worlds = [self.as_master(slave) for slave in candidates]
        best = max(worlds, key=lambda world: world.running.end_position)
        best.check()

    def as_master(self, slave: Slave) -> Producers:
        world = Producers(config=self.config, disk=slave.disk)
        world.sent = copy.deepcopy(self.master.world.sent)
        world.expired = self.master.world.expired
        for message in world.sent:
            message.is_seen = False  # a consumer may see a message before slaves have it
        world.open()
        return world


def run_group(seed: int, *, steps: int = 250, **options: Any) -> None:
    """Live through faults; then lose the master, at once or after everything has healed."""
    rng = random.Random(seed)
    group = Group(rng, **options)
    group.run(steps)
    if rng.random() < 0.5:
        group.heal()
    group.lose_master()
