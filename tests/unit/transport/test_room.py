"""The room that connections share: too many unwritten bytes end the worst of them."""

from __future__ import annotations

from rocketpost.transport.room import UNWRITTEN_BYTES_FREE, Room

MIB = 1024 * 1024


class Peer:
    def __init__(self, room: Room) -> None:
        self._room = room
        self.unwritten_bytes = 0
        self.counted_bytes = 0
        self.stuck_seconds = 0.0
        self.reason = ""

    def owe(self, size: int, *, stuck_seconds: float = 0.0) -> None:
        self.unwritten_bytes, self.stuck_seconds = size, stuck_seconds
        self._room.count_unwritten(self, size)

    def drop(self, reason: str) -> None:
        self.reason = reason
        self.unwritten_bytes = 0
        self._room.count_unwritten(self, 0)


def make(count: int) -> tuple[Room, list[Peer]]:
    room = Room(connections_max=10, partial_bytes_max=MIB, unwritten_bytes_max=8 * MIB)
    return room, [Peer(room) for _ in range(count)]


def test_the_worst_go_until_there_is_room_again() -> None:
    room, peers = make(5)
    for size, peer in enumerate(peers, 1):
        peer.owe(size * MIB // 2)
    assert room.unwritten_bytes == 15 * MIB // 2
    peers[0].owe(2 * MIB)
    assert [bool(peer.reason) for peer in peers] == [False, False, False, False, True]
    assert "bytes wait for all" in peers[4].reason
    assert room.unwritten_bytes == (4 + 2 + 3 + 4) * MIB // 2


def test_those_who_take_nothing_go_before_those_who_are_slow() -> None:
    _, (busy, silent) = make(2)
    busy.owe(6 * MIB)
    silent.owe(3 * MIB, stuck_seconds=5)
    assert silent.reason
    assert not busy.reason


def test_bytes_written_since_do_not_count() -> None:
    room, peers = make(5)
    for peer in peers:
        peer.owe(2 * MIB - 1 if peer is not peers[4] else MIB // 2)
        peer.unwritten_bytes = 0
    peers[4].owe(MIB)
    assert not any(peer.reason for peer in peers)
    assert room.unwritten_bytes == MIB


def test_little_is_not_counted() -> None:
    room, (peer,) = make(1)
    peer.owe(UNWRITTEN_BYTES_FREE)
    assert room.unwritten_bytes == 0
    peer.owe(UNWRITTEN_BYTES_FREE + 1)
    assert room.unwritten_bytes == UNWRITTEN_BYTES_FREE + 1
    peer.owe(0)
    assert room.unwritten_bytes == 0
