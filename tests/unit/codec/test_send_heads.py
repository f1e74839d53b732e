from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.command import decode_command, encode_command
from rocketpost.codec.frames import FRAME_BYTES_MAX, FrameDecoder
from rocketpost.codec.send_heads import SendHeads
from rocketpost.errors import LocalProtocolError
from rocketpost.model.route import MessageQueue

texts = st.text(st.characters(), max_size=20)


def heads_for(**changes: object) -> SendHeads:
    settings = {"group": "G", "topic": "T", "default_topic": "TBW102", "default_queues": 4}
    return SendHeads(310, **(settings | changes))  # type: ignore[arg-type]


@given(
    names=st.tuples(texts, texts, texts),
    properties=texts,
    sequence=st.none() | texts,
    numbers=st.tuples(*[st.integers(0, 2**31 - 1)] * 4),
    born_ms=st.integers(0, 2**53),
    is_batch=st.booleans(),
    times_max=st.none() | st.integers(0, 20),
)
def test_a_head_has_the_bytes_of_the_same_fields(
    names: tuple[str, str, str],
    properties: str,
    sequence: str | None,
    numbers: tuple[int, int, int, int],
    born_ms: int,
    is_batch: bool,
    times_max: int | None,
) -> None:
    group, topic, broker = names
    queue_id, opaque, flag, sys_flag = numbers
    heads = heads_for(
        group=group,
        topic=topic,
        sys_flag=sys_flag,
        is_batch=is_batch,
        reconsume_times=3,
        reconsume_times_max=times_max,
    )
    fields = heads.fields(born_ms, flag, properties, sequence)
    fields |= {"e": str(queue_id), "n": broker}
    expected = encode_command(310, opaque=opaque, fields=fields, body_bytes=17)
    queue = MessageQueue(broker, queue_id, topic)
    for _ in range(2):  # the second time from remembered parts
        head = heads.encode(queue, opaque, born_ms, flag, properties, sequence, 17)
        assert head == expected


def test_a_head_is_readable_as_a_command() -> None:
    queue = MessageQueue("b", 3, "T")
    head = heads_for().encode(queue, 9, 1_700_000_000_000, -1, "K\x01v\x02", None, 2)
    (frame,) = FrameDecoder().feed(head + b"hi")
    command = decode_command(frame)
    assert (command.code, command.opaque, command.body) == (310, 9, b"hi")
    assert command.fields["i"] == "K\x01v\x02"
    assert (command.fields["e"], command.fields["n"]) == ("3", "b")


def test_a_frame_that_no_peer_takes_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        heads_for().encode(MessageQueue("b", 0, "T"), 1, 0, 0, "", None, FRAME_BYTES_MAX)


def test_parts_of_very_many_queues_are_not_all_kept() -> None:
    heads = heads_for()
    for queue_id in range(5000):
        heads.encode(MessageQueue("b", queue_id, "T"), 1, 0, 0, "", None, 1)
    assert len(heads._tails) <= 4096
