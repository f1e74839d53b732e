from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.command import BINARY, JSON, decode_commands, encode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.headers.message import PullMessage
from rocketpost.codec.pull_shapes import PullShape, read_shape
from rocketpost.kernel.pull_lane import PullLane

FIELDS = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "3",
    "queueOffset": "17",
    "commitOffset": "5",
    "subscription": "A || B",
}


def shape_of(data: bytes) -> PullShape | None:
    lane = PullLane()
    shape = lane.split(data, 0, len(data))
    if shape is None:
        return None
    return read_shape(
        shape,
        lane.encoding,
        queue_offset=lane.queue_offset,
        commit_offset=lane.commit_offset,
        opaque=lane.opaque,
    )


def json_frame(text: str) -> bytes:
    header = text.encode()
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("code", [11, 361])
def test_a_shape_means_what_its_first_pull_means(encoding: int, code: int) -> None:
    data = encode_command(code, opaque=1, fields=FIELDS, encoding=encoding)
    (command,) = decode_commands(FrameDecoder().feed(data))
    assert shape_of(data) == PullShape(code, encoding, command.read(PullMessage))


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("flag", [1, 2])
def test_responses_and_oneway_requests_have_no_meaning(encoding: int, flag: int) -> None:
    assert (
        shape_of(encode_command(11, opaque=1, flag=flag, fields=FIELDS, encoding=encoding)) is None
    )


def test_a_pull_without_a_topic_has_no_meaning() -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "topic"}
    assert shape_of(encode_command(11, opaque=1, fields=fields)) is None


@pytest.mark.parametrize(
    "text",
    [
        # The numbers that were found are not those that count.
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"x":{"queueOffset":"1"},"queueOffset": "2","commitOffset":"3"},"opaque":4}',
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"queueOffset":"1","queueOffset":"2","commitOffset":"3"},"opaque":4}',
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"queueOffset":"1","commitOffset":"3","opaque":4}, "opaque": 5}',
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"a\\"queueOffset":"1","commitOffset":"3"},"opaque":4}',
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"queueOffset":"1","commitOffset":"3"},"opaque":4,"code":310}',
        # The numbers are part of longer ones.
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"queueOffset":"1","commitOffset":"3"},"opaque":4e1}',
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"queueOffset":"1","commitOffset":"3"},"opaque":4.0}',
        # Not JSON.
        '{"code":11,"extFields":{"topic":"T","consumerGroup":"g","queueId":"0",'
        '"queueOffset":"1","commitOffset":"3"},"opaque":4',
    ],
)
def test_numbers_that_do_not_decide_are_noticed(text: str) -> None:
    assert shape_of(json_frame(text)) is None


@given(
    encoding=st.sampled_from([JSON, BINARY]),
    changes=st.lists(st.tuples(st.integers(8, 300), st.integers(0, 255)), max_size=4),
    offsets=st.tuples(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1)),
)
def test_a_meaning_is_that_of_the_codec(
    encoding: int, changes: list[tuple[int, int]], offsets: tuple[int, int]
) -> None:
    fields = FIELDS | {"queueOffset": str(offsets[0]), "commitOffset": str(offsets[1])}
    data = bytearray(encode_command(11, opaque=1, fields=fields, encoding=encoding))
    for at, byte in changes:
        if at < len(data):
            data[at] = byte
    found = shape_of(bytes(data))
    if found is not None:
        (command,) = decode_commands(FrameDecoder().feed(bytes(data)))
        assert found == PullShape(command.code, encoding, command.read(PullMessage))
