"""Strategies that assign the queues of a topic to the members of a group.

Every member computes its own share from the same sorted lists, so all must compute alike: these are
exactly RocketMQ's algorithms. A strategy is a callable like :class:`AllocationStrategy`; users may
write their own. Brokers and other clients know it by its ``name``. If it raises, the queues stay
unchanged until the next round.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, TypeVar

from rocketpost.client.checks import check_function
from rocketpost.errors import ConfigError
from rocketpost.model.route import MessageQueue
from rocketpost.model.shares import average_share, circle_share

VIRTUAL_NODES: Final = 10
ROOM_SEPARATOR: Final = "@"

T = TypeVar("T")

Hash = Callable[[str], int]
"""The hash of a text on the ring of :class:`ConsistentHash`."""


class AllocationStrategy(Protocol):
    """Chooses the queues of one member."""

    @property
    def name(self) -> str:
        """The strategy's name on the wire."""
        ...

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of ``client_id``; both sequences are sorted and not empty."""
        ...


def check_strategy(strategy: AllocationStrategy) -> AllocationStrategy:
    """Return a strategy after checking that it can be called.

    Raises:
        ConfigError: It has no name, or is not a function of id, queues and members.
    """
    if isinstance(strategy, type):
        raise ConfigError(f"strategy must be an object, not a class: pass {strategy.__name__}()")
    check_function("strategy", strategy, arguments=3, may_be_async=False)
    if not isinstance(getattr(strategy, "name", None), str):
        raise ConfigError("strategy needs a name, which is sent to brokers")
    return strategy


class Average:
    """Contiguous blocks of nearly equal size; the first members get the longer ones."""

    name = "AVG"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of ``client_id``."""
        if client_id not in members:
            return []
        return average_share(queues, members.index(client_id), len(members))


class AverageByCircle:
    """Queues dealt out one by one, round robin."""

    name = "AVG_BY_CIRCLE"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues dealt to ``client_id``."""
        if client_id not in members:
            return []
        return circle_share(queues, members.index(client_id), len(members))


def md5_hash(text: str) -> int:
    """Return the first four bytes of the MD5 digest; the default hash of the ring."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class ConsistentHash:
    """Queues and members on a hash ring: few queues move when a member comes or goes.

    Args:
        virtual_nodes: Number of nodes per member on the ring.
        hash_text: Hash of a text on the ring; all members must use the same.

    Raises:
        ConfigError: ``virtual_nodes`` is not positive.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES, *, hash_text: Hash = md5_hash) -> None:
        if virtual_nodes < 1:
            raise ConfigError(f"virtual_nodes must be over 0, not {virtual_nodes}")
        self._virtual_nodes = virtual_nodes
        self._hash = hash_text

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues whose next node on the ring belongs to ``client_id``."""
        if client_id not in members:
            return []
        # Of two nodes with the same hash the later one stays, as in Java's map.
        ring = {
            self._hash(f"{member}-{node}"): member
            for member in members
            for node in range(self._virtual_nodes)
        }
        places = sorted(ring)
        return [queue for queue in queues if ring[self._node(places, queue)] == client_id]

    def _node(self, places: list[int], queue: MessageQueue) -> int:
        # The text of Java's toString, so that all members hash the same.
        text = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        return places[bisect.bisect_left(places, self._hash(text)) % len(places)]


class ByConfiguration:
    """A fixed list of queues. Nothing checks that every queue has an owner.

    Args:
        queues: The queues of this member.
    """

    name = "CONFIG"

    def __init__(self, queues: Collection[MessageQueue] = ()) -> None:
        self._queues = sorted(queues, key=lambda queue: queue.sort_key)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues of this topic."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self._queues if queue.topic in topics]


class MachineRoom:
    """Only the queues of brokers in some rooms; a broker's name starts with its room and ``@``.

    Queues of other rooms have no owner. That includes the group's retry topic, as in Java.

    Args:
        rooms: The rooms to consume from; all members must name the same.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return a block of the rooms' queues, and one of the remaining queues."""
        if client_id not in members:
            return []
        index = members.index(client_id)
        near = [queue for queue in queues if _room(queue.broker_name) in self._rooms]
        share, rest = divmod(len(near), len(members))
        block = near[index * share : (index + 1) * share]
        return block + ([near[index + share * len(members)]] if index < rest else [])


class RoomResolver(Protocol):
    """Finds the rooms of brokers and members."""

    def queue_room(self, queue: MessageQueue) -> str:
        """Return the room of a queue's broker."""
        ...

    def member_room(self, client_id: str) -> str:
        """Return the room of a member."""
        ...


class MachineRoomNearby:
    """Queues go to members in the same room; those of rooms without a member go to all.

    Args:
        inner: The strategy among the members of a room.
        resolver: Finds the rooms; all members must get the same answers.
    """

    def __init__(self, inner: AllocationStrategy, resolver: RoomResolver) -> None:
        self._inner = inner
        self._resolver = resolver

    @property
    def name(self) -> str:
        """The strategy's name on the wire, which includes that of the inner one."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share in the member's own room, then in every room without a member.

        Raises:
            ConfigError: The resolver does not know a room.
        """
        if client_id not in members:
            return []
        rooms = _group_by_room(queues, self._resolver.queue_room)
        members_of = _group_by_room(members, self._resolver.member_room)
        mine = self._resolver.member_room(client_id)
        near = rooms.pop(mine, [])
        share = self._inner(client_id, near, members_of[mine]) if near else []
        for room, orphans in sorted(rooms.items()):
            if room not in members_of:
                share += self._inner(client_id, orphans, members)
        return share


def _group_by_room(things: Sequence[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ConfigError(f"the machine room of {thing} is not known")
        rooms.setdefault(room, []).append(thing)
    return rooms


def _room(broker_name: str) -> str | None:
    """Return the room in ``room@name``; None for a name of another form, split as in Java."""
    parts = broker_name.rstrip(ROOM_SEPARATOR).split(ROOM_SEPARATOR)
    return parts[0] if len(parts) == 2 else None
