"""Frames of the messages of a group: any cutting, any damage, bounded sizes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.group.frames import (
    BODY_BYTES_MAX,
    CONFIGURATION_COUNT_MAX,
    SPAN_COUNT_MAX,
    RaftDecoder,
    RaftEncoder,
    group_mark,
)
from rocketpost.errors import LocalProtocolError, RemoteProtocolError
from rocketpost.model.members import MEMBER_COUNT_MAX, MEMBER_NAME_BYTES_MAX, TERM_MAX
from rocketpost.raft.messages import (
    Append,
    AppendReply,
    ConflictSpan,
    MemberRecord,
    Members,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReply,
)

POSITION_MAX = 2**63 - 1
encode = RaftEncoder("g").encode

terms = st.integers(0, TERM_MAX)
positions = st.integers(0, POSITION_MAX)
names = st.sets(st.text("ab1é", min_size=1, max_size=9), max_size=6)


@st.composite
def configurations(draw: st.DrawFn) -> Members:
    voters = draw(names)
    return Members(frozenset(voters), frozenset(draw(names) - voters))


@st.composite
def spans(draw: st.DrawFn, begin: int, end: int) -> tuple[TermSpan, ...]:
    starts = sorted(draw(st.sets(st.integers(begin, end - 1), max_size=5))) if begin < end else []
    found = sorted(draw(st.sets(terms, min_size=len(starts), max_size=len(starts))))
    return tuple(map(TermSpan, found, starts))


@st.composite
def appends(draw: st.DrawFn) -> Append:
    prev = draw(st.integers(0, POSITION_MAX - 60))
    end = prev + draw(st.integers(0, 60))
    ends = sorted(draw(st.sets(st.integers(prev + 1, end), max_size=3))) if prev < end else []
    return Append(
        draw(terms), prev, draw(terms), end, draw(spans(prev, end)),
        tuple(MemberRecord(position, draw(configurations())) for position in ends),
        draw(positions), draw(positions), draw(positions),
    )  # fmt: skip


@st.composite
def offers(draw: st.DrawFn) -> SnapshotOffer:
    first = draw(positions)
    record = MemberRecord(draw(positions), draw(configurations()))
    numbers = (draw(positions), draw(positions), draw(positions))
    return SnapshotOffer(draw(terms), first, draw(spans(0, first)), record, *numbers)


conflicts = st.tuples(terms, positions, positions).map(
    lambda each: ConflictSpan(each[0], min(each[1:]), max(each[1:]))
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVote, terms, positions, terms),
    st.builds(PreVoteReply, terms, st.booleans()),
    st.builds(Vote, terms, positions, terms, st.booleans()),
    st.builds(VoteReply, terms, st.booleans()),
    appends(),
    st.builds(
        AppendReply,
        terms,
        positions,
        st.integers(-1, POSITION_MAX - 1),
        st.none() | conflicts,
        positions,
    ),
    st.builds(TimeoutNow, terms),
    offers(),
)
cuts = st.lists(st.integers(0, 900), max_size=20)


def body_of(message: Message) -> bytes:
    return bytes(range(message.end - message.prev)) if isinstance(message, Append) else b""


def frame(message: Message) -> bytes:
    body = body_of(message)
    return encode(message, len(body)) + body


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    bounded = sorted(min(place, len(data)) for place in places)
    return [data[low:high] for low, high in pairwise([0, *bounded, len(data)])]


@given(sent=st.lists(messages, max_size=5), places=cuts)
def test_messages_survive_any_cutting_of_the_stream(sent: list[Message], places: list[int]) -> None:
    decoder = RaftDecoder("g")
    stream = b"".join(map(frame, sent))
    got = [each for data in pieces(stream, places) for each in decoder.feed(data)]
    assert got == [(message, body_of(message)) for message in sent]
    assert [type(message) for message, _ in got] == list(map(type, sent))


class GeneralEncoder(RaftEncoder):
    """Encodes every message by the general way."""

    def _plain_append(self, message: Append, body_bytes: int) -> None:
        return None


@given(message=appends(), term=terms)
def test_the_usual_append_has_the_same_bytes_by_either_way(message: Append, term: int) -> None:
    general = GeneralEncoder("g").encode
    plain = message._replace(spans=(TermSpan(term, message.prev),), members=())
    for each in (message, plain):
        size = each.end - each.prev
        if size or not each.spans:
            assert encode(each, size) == general(each, size)
    is_plain = RaftEncoder("g")._plain_append(plain, plain.end - plain.prev) is not None
    assert is_plain == (plain.end > plain.prev)


@pytest.mark.parametrize("field", ["term", "prev", "prev_term", "commit", "suspect", "bar"])
@pytest.mark.parametrize("value", [-1, 2**63])
def test_the_usual_append_is_refused_if_a_number_is_impossible(field: str, value: int) -> None:
    sound = Append(1, 10, 1, 20, (TermSpan(1, 10),))
    with pytest.raises(LocalProtocolError):
        encode(sound._replace(**{field: value}), 10)
    with pytest.raises(LocalProtocolError):
        encode(sound._replace(spans=(TermSpan(1, 11),), end=value), 10)


@given(message=messages, bit=st.integers(0))
def test_a_flipped_bit_of_a_head_is_refused(message: Message, bit: int) -> None:
    head = bytearray(encode(message, len(body_of(message))))
    at = bit % (8 * len(head))
    head[at // 8] ^= 1 << at % 8
    decoder = RaftDecoder("g")
    try:
        found = decoder.feed(bytes(head) + body_of(message))
    except RemoteProtocolError:
        return
    assert not found  # a greater length: the rest never comes


@given(data=st.binary(max_size=200), kind=st.integers(0, 9), term=terms)
def test_any_fields_are_understood_or_refused(data: bytes, kind: int, term: int) -> None:
    """The CRC is right, so the fields themselves are judged."""
    size = 20 + len(data) + 4
    head = b"".join(
        (
            (size - 4).to_bytes(4, "big"),
            size.to_bytes(2, "big"),
            bytes([1, kind]),
            group_mark("g").to_bytes(4, "big"),
            term.to_bytes(8, "big"),
            data,
        )
    )
    head += crc32(head).to_bytes(4, "big")
    try:
        found = RaftDecoder("g").feed(head)
    except RemoteProtocolError:
        return
    assert [encode(message) for message, _ in found] == [head]  # there is one form of each message


@given(data=st.binary(max_size=400), places=cuts)
def test_any_bytes_are_refused_whatever_their_cutting(data: bytes, places: list[int]) -> None:
    def read(parts: list[bytes]) -> list[tuple[Message, bytes]] | None:
        decoder = RaftDecoder("g")
        try:
            return [each for part in parts for each in decoder.feed(part)]
        except RemoteProtocolError:
            return None

    assert read([data]) == read(pieces(data, places))


def test_the_example_of_the_documentation() -> None:
    page = Path(__file__).parents[4] / "docs" / "formats" / "group-frames.md"
    example = page.read_text().rpartition("## Example")[2].split("```")[1]
    assert encode(Vote(7, 8000, 6)) == bytes.fromhex(example)


def test_the_bytes_of_a_vote() -> None:
    head = encode(Vote(7, 8000, 6, is_transfer=True))
    assert head[:8].hex() == "0000002500290103"  # size, head, version, kind
    assert head[8:12] == crc32(b"g").to_bytes(4, "big")
    assert head[12:-4].hex() == "00000000000000070000000000001f40000000000000000601"
    assert head[-4:] == crc32(head[:-4]).to_bytes(4, "big")


def test_a_large_body_in_many_pieces() -> None:
    body = bytes(1_000_000)
    message = Append(3, 500, 2, 500 + len(body), (TermSpan(3, 500),))
    decoder = RaftDecoder("g")
    assert decoder.feed(encode(message, len(body))) == []
    for at in range(0, len(body) - 1000, 1000):
        assert decoder.feed(memoryview(body)[at : at + 1000]) == []
    assert decoder.feed(body[-1000:] + encode(TimeoutNow(4))) == [
        (message, body),
        (TimeoutNow(4), b""),
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda head: bytes(4) + head[4:], "but a head of"),
        (lambda head: b"\xff" * 4 + head[4:], "a message has 4294967295 bytes"),
        (lambda head: head[:4] + b"\0\0" + head[6:], "but a head of 0"),
        (lambda head: head[:4] + b"\xff\xff" + head[6:], "but a head of 65535"),
        (lambda head: head[:6] + b"\2" + head[7:], "version 2, not 1"),
        (lambda head: head[:7] + b"\x63" + head[8:], "unknown kind 99"),
        (lambda head: head[:8] + b"abcd" + head[12:], "another group"),
        (lambda head: head[:-1] + bytes([head[-1] ^ 1]), "CRC"),
    ],
)
def test_a_bad_head_is_refused_at_once(change: object, why: str) -> None:
    head = change(encode(PreVote(7, 8000, 6)))  # type: ignore[operator]
    with pytest.raises(RemoteProtocolError, match=why):
        RaftDecoder("g").feed(head)


ONE = Members(frozenset({"n0"}))
APPEND = Append(5, 100, 4, 200)
IMPOSSIBLE: list[Message] = [
    TimeoutNow(-1),
    TimeoutNow(TERM_MAX + 1),
    Vote(1, -1, 0),
    Vote(1, 0, TERM_MAX + 1),
    PreVote(1, 2**63, 0),
    APPEND._replace(prev=-1),
    APPEND._replace(end=99),
    APPEND._replace(commit=-1),
    APPEND._replace(prev_term=-1),
    APPEND._replace(suspect=-1),
    APPEND._replace(spans=(TermSpan(4, 99),)),
    APPEND._replace(spans=(TermSpan(4, 200),)),
    APPEND._replace(spans=(TermSpan(4, 100), TermSpan(4, 101))),
    APPEND._replace(spans=(TermSpan(4, 100), TermSpan(5, 100))),
    APPEND._replace(members=(MemberRecord(100, ONE),)),
    APPEND._replace(members=(MemberRecord(201, ONE),)),
    APPEND._replace(members=(MemberRecord(150, ONE), MemberRecord(150, ONE))),
    APPEND._replace(members=(MemberRecord(150, Members(ONE.voters, ONE.voters)),)),
    APPEND._replace(members=(MemberRecord(150, Members(frozenset({""}))),)),
    AppendReply(1, -1),
    AppendReply(1, 0, -2),
    AppendReply(1, 0, 0, ConflictSpan(1, 5, 4)),
    AppendReply(1, 0, 0, ConflictSpan(-1, 4, 5)),
    SnapshotOffer(1, 50, (TermSpan(1, 50),), MemberRecord(1, ONE), 50),
    SnapshotOffer(1, -1, (), MemberRecord(1, ONE), 50),
    SnapshotOffer(1, 50, (), MemberRecord(-1, ONE), 50),
]


@pytest.mark.parametrize("message", IMPOSSIBLE, ids=str)
def test_an_impossible_message_is_not_sent(message: Message) -> None:
    size = message.end - message.prev if isinstance(message, Append) else 0
    with pytest.raises(LocalProtocolError):
        encode(message, size)


def test_a_body_must_have_the_bytes_that_the_message_states() -> None:
    for size in (0, 99, 101):
        with pytest.raises(LocalProtocolError, match="bytes of the log"):
            encode(APPEND, size)
    with pytest.raises(LocalProtocolError, match="bytes of the log"):
        encode(TimeoutNow(1), 1)
    head = bytearray(encode(APPEND, 100))
    head[:4] = (len(head) - 4 + 99).to_bytes(4, "big")
    head[-4:] = crc32(head[:-4]).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match="99 bytes of the log instead of 100"):
        RaftDecoder("g").feed(head)


def test_sizes_are_bounded() -> None:
    end = 10 * SPAN_COUNT_MAX
    many = tuple(TermSpan(n + 1, n) for n in range(SPAN_COUNT_MAX + 1))
    with pytest.raises(LocalProtocolError, match="terms"):
        encode(Append(5, 0, 0, end, many), end)
    offer = SnapshotOffer(5000, end, many, MemberRecord(1, ONE), end)
    ((found, _),) = RaftDecoder("g").feed(encode(offer))
    assert isinstance(found, SnapshotOffer)
    assert found.spans == many[1:]  # as far as the receiver needs them
    records = tuple(MemberRecord(n + 1, ONE) for n in range(CONFIGURATION_COUNT_MAX + 1))
    with pytest.raises(LocalProtocolError, match="configurations"):
        encode(Append(5, 0, 0, 100, (), records), 100)
    with pytest.raises(LocalProtocolError, match="bytes of the log"):
        encode(Append(5, 0, 0, BODY_BYTES_MAX + 1), BODY_BYTES_MAX + 1)
    crowd = Members(frozenset(f"n{n}" for n in range(MEMBER_COUNT_MAX + 1)))
    long = Members(frozenset({"n" * (MEMBER_NAME_BYTES_MAX + 1)}))
    for members in (crowd, long):
        with pytest.raises(LocalProtocolError, match="members"):
            encode(SnapshotOffer(5, 1, (), MemberRecord(1, members), 0))


def test_the_largest_head_fits() -> None:
    end = SPAN_COUNT_MAX
    spans = tuple(TermSpan(n + 1, n) for n in range(SPAN_COUNT_MAX))
    names = [f"{n}".ljust(MEMBER_NAME_BYTES_MAX, "n") for n in range(MEMBER_COUNT_MAX)]
    largest = Members(frozenset(names))
    records = tuple(MemberRecord(n + 1, largest) for n in range(CONFIGURATION_COUNT_MAX))
    message = Append(5000, 0, 0, end, spans, records)
    head = encode(message, end)
    ((found, _),) = RaftDecoder("g").feed(head + bytes(end))
    assert found == message
