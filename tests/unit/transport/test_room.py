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


class Guest:
    def __init__(self, *, is_known: bool = False, partial_bytes: int = 0) -> None:
        self.is_known = is_known
        self.partial_bytes = partial_bytes
        self.reason = ""

    def drop(self, reason: str) -> None:
        self.reason = reason


def test_strangers_make_room_for_others_oldest_first() -> None:
    room, _ = make(0)
    room.knows_users = True
    guests = [Guest(is_known=number in (0, 2)) for number in range(10)]
    assert all(room.enter(guest) for guest in guests)
    assert room.enter(Guest())
    assert [bool(guest.reason) for guest in guests[:5]] == [False, True, False, False, False]
    room.leave(guests[1])
    assert room.enter(Guest())
    assert [bool(guest.reason) for guest in guests[:5]] == [False, True, False, True, False]


def test_nobody_makes_room_who_has_logged_in_or_where_nobody_logs_in() -> None:
    for knows_users in (True, False):
        room, _ = make(0)
        room.knows_users = knows_users
        guests = [Guest(is_known=knows_users) for _ in range(10)]
        assert all(room.enter(guest) for guest in guests)
        assert not room.enter(Guest())
        assert not any(guest.reason for guest in guests)


def test_unfinished_frames_of_strangers_are_dropped_first() -> None:
    room, _ = make(0)
    room.knows_users = True
    user, stranger = Guest(is_known=True, partial_bytes=MIB), Guest(partial_bytes=MIB)
    honest = Guest()
    for guest in (user, stranger, honest):
        room.enter(guest)
    assert room.drop_unfinished_strangers()
    assert [bool(each.reason) for each in (user, stranger, honest)] == [False, True, False]
    assert not room.drop_unfinished_strangers()
