"""Strategies that share out the queues of a topic among the members of a group.

Every member computes its own share from the same sorted lists, so all must compute alike: these are
RocketMQ's algorithms to the letter. A strategy is a callable of the shape of
:class:`AllocationStrategy`, one of your own included; ``name`` is what brokers and other clients
call it. One that raises leaves the queues as they are until the next round.
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
"""Where a text stands on the ring of :class:`ConsistentHash`."""


class AllocationStrategy(Protocol):
    """Decides which queues are ours."""

    @property
    def name(self) -> str:
        """The strategy's name on the wire."""
        ...  # pragma: no cover

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of ``client_id``; both sequences are sorted and not empty."""
        ...  # pragma: no cover


def check_strategy(strategy: AllocationStrategy) -> AllocationStrategy:
    """Return a strategy that can be asked.

    Raises:
        ConfigError: It has no name, or is no function of id, queues and members.
    """
    if isinstance(strategy, type):
        raise ConfigError(f"strategy must be an object, not a class: pass {strategy.__name__}()")
    check_function("strategy", strategy, arguments=3, may_be_async=False)
    if not isinstance(getattr(strategy, "name", None), str):
        raise ConfigError("strategy needs a name, which brokers are told")
    return strategy


class Average:
    """Contiguous blocks of as equal a size as can be; the first members get the longer ones."""

    name = "AVG"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of ``client_id``."""
        if client_id not in members:
            return []
        return average_share(queues, members.index(client_id), len(members))


class AverageByCircle:
    """Queues dealt out like cards."""

    name = "AVG_BY_CIRCLE"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every queue that ``client_id`` is dealt."""
        if client_id not in members:
            return []
        return circle_share(queues, members.index(client_id), len(members))


def md5_hash(text: str) -> int:
    """Return the first four bytes of the MD5 digest, the ring's hash unless another is given."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class ConsistentHash:
    """Queues and members on a ring: few queues move when a member comes or goes.

    Args:
        virtual_nodes: How often each member stands on the ring.
        hash_text: Where a text stands; all members must use the same.

    Raises:
        ConfigError: There would be nobody on the ring.
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
        """Return the queues whose next node on the ring is one of ``client_id``."""
        if client_id not in members:
            return []
        # Of two nodes in one place the later one stays, as in Java's map.
        ring = {
            self._hash(f"{member}-{node}"): member
            for member in members
            for node in range(self._virtual_nodes)
        }
        places = sorted(ring)
        return [queue for queue in queues if ring[self._node(places, queue)] == client_id]

    def _node(self, places: list[int], queue: MessageQueue) -> int:
        # The text is that of Java's toString, which all members must hash alike.
        text = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        return places[bisect.bisect_left(places, self._hash(text)) % len(places)]


class ByConfiguration:
    """Always the same queues, whoever else is there. Nobody checks that every queue has an owner.

    Args:
        queues: The queues of this member.
    """

    name = "CONFIG"

    def __init__(self, queues: Collection[MessageQueue] = ()) -> None:
        self._queues = sorted(queues, key=lambda queue: queue.sort_key)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues of the topic at hand."""
        topics = {queue.topic for queue in queues}
        return [queue for queue in self._queues if queue.topic in topics]


class MachineRoom:
    """Queues of brokers in some rooms only; a broker's name starts with its room and ``@``.

    Queues of other rooms are nobody's. That includes the group's retry topic, as in Java.

    Args:
        rooms: The rooms that are consumed from; all members must name the same.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return a block of the rooms' queues, and one of those that are left over."""
        if client_id not in members:
            return []
        index = members.index(client_id)
        near = [queue for queue in queues if _room(queue.broker_name) in self._rooms]
        share, rest = divmod(len(near), len(members))
        block = near[index * share : (index + 1) * share]
        return block + ([near[index + share * len(members)]] if index < rest else [])


class RoomResolver(Protocol):
    """Knows where brokers and members stand."""

    def queue_room(self, queue: MessageQueue) -> str:
        """Return the room of a queue's broker."""
        ...  # pragma: no cover

    def member_room(self, client_id: str) -> str:
        """Return the room of a member."""
        ...  # pragma: no cover


class MachineRoomNearby:
    """Queues go to members of their own room; those of rooms without any member go to all.

    Args:
        inner: How the members of a room share its queues.
        resolver: Who stands where; all members must get the same answers.
    """

    def __init__(self, inner: AllocationStrategy, resolver: RoomResolver) -> None:
        self._inner = inner
        self._resolver = resolver

    @property
    def name(self) -> str:
        """The strategy's name on the wire, which tells of the inner one."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return our part of our own room, then of every room where nobody is.

        Raises:
            ConfigError: The resolver does not know a room.
        """
        if client_id not in members:
            return []
        rooms = _grouped(queues, self._resolver.queue_room)
        members_of = _grouped(members, self._resolver.member_room)
        mine = self._resolver.member_room(client_id)
        near = rooms.pop(mine, [])
        share = self._inner(client_id, near, members_of[mine]) if near else []
        for room, orphans in sorted(rooms.items()):
            if room not in members_of:
                share += self._inner(client_id, orphans, members)
        return share


def _grouped(things: Sequence[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ConfigError(f"the room of {thing} is not known")
        rooms.setdefault(room, []).append(thing)
    return rooms


def _room(broker_name: str) -> str | None:
    """Return the room in ``room@name``; None if the name is not of this shape, as Java splits."""
    parts = broker_name.rstrip(ROOM_SEPARATOR).split(ROOM_SEPARATOR)
    return parts[0] if len(parts) == 2 else None
