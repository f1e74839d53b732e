from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.frames import FrameDecoder
from rocketpost.transport.express import Data, offer


def frame(text: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(text), len(text)) + text


class Receiver:
    """Keeps what it is given, one entry for each frame; frames with "x" are taken express."""

    def __init__(self) -> None:
        self.decoder = FrameDecoder()
        self.served: list[bytes] = []
        self.offers = 0
        self.is_behind = False
        self.behind_after = b""

    def receive(self, data: bytes, deadline: float) -> None:
        for each in self.decoder.feed(data):
            self.served.append(each.header)
            if each.header == self.behind_after:
                self.is_behind = True

    def take(self, receiver: Receiver, data: Data, at: int, size: int) -> int:
        assert receiver is self
        assert not self.is_behind
        self.offers += 1
        while size - at >= 8:
            end = at + 4 + struct.unpack_from(">i", data, at)[0]
            if end > size or data[at + 8 : at + 9] != b"x":
                break
            self.served.append(bytes(data[at + 8 : end]) + b"!")
            at = end
        return at

    def feed(self, data: bytes, budget: float = float("inf")) -> None:
        held = self.decoder.release()
        buffer = bytearray(b"??" + held + data + b"????????")
        offer(self, self.take, buffer, 2, len(buffer) - 8, budget)


@given(
    texts=st.lists(st.sampled_from([b"x1", b"x2", b"y", b"zz", b""]), max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_order_is_kept_however_the_stream_is_cut(texts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, texts))
    receiver = Receiver()
    at = 0
    for cut in [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]:
        if cut > at:
            receiver.feed(stream[at:cut])
        at = cut
    assert [each.removesuffix(b"!") for each in receiver.served] == texts
    assert all(each.startswith(b"x") for each in receiver.served if each.endswith(b"!"))
    assert not receiver.decoder.held


def test_nothing_is_offered_when_the_time_is_over() -> None:
    receiver = Receiver()
    receiver.feed(frame(b"x1") + frame(b"y") + frame(b"x2") + frame(b"x3"), budget=-1.0)
    assert receiver.served == [b"x1!", b"y", b"x2", b"x3"]
    assert receiver.offers == 1


def test_whatever_can_be_taken_is_taken() -> None:
    receiver = Receiver()
    receiver.feed(frame(b"x1") + frame(b"y") + frame(b"x2") + frame(b"x3"))
    assert receiver.served == [b"x1!", b"y", b"x2!", b"x3!"]
    assert receiver.offers == 2


def test_a_frame_in_two_reads_is_taken() -> None:
    receiver = Receiver()
    stream = frame(b"x" * 50) + frame(b"x2")
    for cut in (3, 8, 20, 57):
        receiver.served.clear()
        receiver.feed(stream[:cut])
        receiver.feed(stream[cut:])
        assert receiver.served == [b"x" * 50 + b"!", b"x2!"]


def test_bytes_are_not_offered_after_two_that_were_left() -> None:
    receiver = Receiver()
    receiver.feed(frame(b"y1") + frame(b"y2") + frame(b"y3") + frame(b"x"))
    assert receiver.served == [b"y1", b"y2", b"y3", b"x"]
    assert receiver.offers == 2
    receiver.feed(frame(b"x"))
    assert receiver.served[-1] == b"x!"


def test_nothing_is_taken_while_earlier_requests_wait() -> None:
    receiver = Receiver()
    receiver.behind_after = b"slow"
    receiver.feed(frame(b"x1") + frame(b"slow") + frame(b"x2"))
    assert receiver.served == [b"x1!", b"slow", b"x2"]
    receiver.feed(frame(b"x3"))
    assert receiver.served[-1] == b"x3"


@pytest.mark.parametrize("length", [-5, 3, 2**31 - 1])
def test_a_malformed_frame_is_left_to_the_decoder(length: int) -> None:
    receiver = Receiver()
    with pytest.raises(Exception, match="bad frame"):
        receiver.feed(frame(b"x1") + struct.pack(">iI", length, 5) + b"12345678")
    assert receiver.served == [b"x1!"]


def test_a_function_that_was_asked_already_is_not_asked_again() -> None:
    receiver = Receiver()
    data = frame(b"x1") + frame(b"y") + frame(b"x2")
    taken = receiver.take(receiver, data, 0, len(data))
    offer(receiver, receiver.take, data, 0, len(data), float("inf"), taken)
    assert receiver.served == [b"x1!", b"y", b"x2!"]
    assert receiver.offers == 2
