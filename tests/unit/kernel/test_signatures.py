"""Signatures: hashes, texts and the sends that the lane takes by them."""

from __future__ import annotations

import hashlib
import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.access.signature import ACCESS_KEY, SIGNATURE, sign
from rocketpost.codec.command import decode_commands
from rocketpost.codec.frames import FrameDecoder
from rocketpost.kernel import signatures

from .conftest import builds
from .lane_world import (
    LETTERS,
    QUEUES,
    World,
    batch_body,
    binary_header,
    fields_of,
    frame,
    json_header,
)

LANES = builds("send_lane")
MORE, ODD, FULL = 0, 1, 2
KEY = "UNIQ_KEY\x01C0A8010A00002A9F4E0E2F2A4D07{:04X}\x02"
USER, SECRET = "orders", "12345678"
SIZES = [0, 1, 27, 54, 55, 56, 63, 64, 65, 119, 120, 127, 128, 1000, 4095, 70_001]


@pytest.fixture(scope="module", params=LANES.values(), ids=list(LANES))
def lane(request: pytest.FixtureRequest) -> ModuleType:
    """Each build of the lane."""
    module: ModuleType = request.param
    return module


def signed_fields(
    properties: str, body: bytes, *, code: int, user: str = USER, secret: str = SECRET, **more: Any
) -> dict[str, Any]:
    """Return the fields of a signed send, by their long names."""
    fields = fields_of(properties, **more) | {ACCESS_KEY: user}
    named = fields if code == 10 else {LETTERS.get(name, name): fields[name] for name in fields}
    return fields | {SIGNATURE: sign(secret.encode(), named, [body])}


def send(
    number: int = 0, encoding: int = 0, body: bytes = b"body", code: int = 310, **more: Any
) -> bytes:
    """Return a signed send."""
    properties = more.pop("properties", KEY.format(number) + "TAGS\x01TagA\x02")
    more = {"queueId": str(number % 4), "bornTimestamp": str(1_700_000_000_000 + number)} | more
    fields = signed_fields(properties, body, code=code, **more)
    if encoding:
        return frame(binary_header(fields, code=code, opaque=number), body, 1)
    return frame(json_header(fields, code=code, opaque=1000 + number), body)


def make_signer(lane: ModuleType, user: str = USER, secret: str = SECRET) -> Any:
    """Return a signer of the same build as a lane, who may send to no topic yet."""
    build = signatures if lane is LANES.get("compiled") else lane
    return build.Signer(user.encode(), secret.encode())


def signer_of(lane: ModuleType, world: World, user: str = USER, secret: str = SECRET) -> Any:
    """Return a signer who may send to the first two topics."""
    signer = make_signer(lane, user, secret)
    for topic in (0, 1):
        signer.allow(topic, world.lane.topics.epoch)
    return signer


def check(lane: ModuleType, data: bytes, user: str = USER, secret: str = SECRET) -> int:
    """Take frames, compare with the ordinary way; returns how many bytes were taken."""
    world = World(lane)
    world.signer = signer_of(lane, world, user, secret)
    return world.check(data)


# Hashes.


@pytest.mark.parametrize("ways", [1, 4, 16])
@pytest.mark.parametrize("size", SIZES)
def test_every_border_of_the_blocks(kernel: ModuleType, size: int, ways: int) -> None:
    texts = [bytes(i * 7 + n & 255 for i in range(size)) for n in range(16)]
    for count in (1, 3, 4, 7, 11, 16):
        assert kernel.Verifier(ways).digests(texts[:count]) == digests_of(texts[:count])


@given(
    sizes=st.lists(st.integers(0, 700), max_size=16),
    ways=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 9),
)
def test_texts_of_any_sizes_together(
    kernel: ModuleType, sizes: list[int], ways: int, seed: int
) -> None:
    rng = random.Random(seed)
    texts = [rng.randbytes(size) for size in sizes]
    assert kernel.Verifier(ways).digests(texts) == digests_of(texts)


def digests_of(texts: list[bytes]) -> list[bytes]:
    return [hashlib.sha1(text, usedforsecurity=False).digest() for text in texts]


@pytest.mark.parametrize("secret_bytes", [1, 8, 63, 64, 65, 200])
def test_a_text_is_signed_by_one_secret(kernel: ModuleType, secret_bytes: int) -> None:
    secret = "s" * secret_bytes
    signer = kernel.Signer(b"u", secret.encode())
    for size in SIZES[:-2]:
        text = "t" * size
        signature = sign(secret.encode(), {"a": text}, []).encode()
        assert signer.is_signed(text.encode(), signature)
        assert not signer.is_signed(text.encode() + b"t", signature)
        assert not signer.is_signed(text.encode(), signature[:-1])
        for at in range(28):
            bent = signature[:at] + bytes([signature[at] ^ 1]) + signature[at + 1 :]
            assert not signer.is_signed(text.encode(), bent)
    other = kernel.Signer(b"u", secret.encode() + b"x")
    assert not other.is_signed(b"t", sign(secret.encode(), {"a": "t"}, []).encode())


def test_the_vectors_of_the_protocol(kernel: ModuleType) -> None:
    signer = kernel.Signer(b"rocketmq2", b"12345678")
    assert signer.is_signed(b"rocketmq23TopicA", b"PBAsB9V9o+CXiipYdsashslZpyM=")
    assert signer.is_signed(b'rocketmq23TopicA{"a":1}', b"8H5/T0EYWjuPMEOlrwQikxumHAA=")


def test_no_secret_can_be_read(kernel: ModuleType) -> None:
    signer = kernel.Signer(b"u", b"hidden")
    assert b"hidden" not in repr(signer).encode()
    if kernel.__file__.endswith(".so"):
        assert not any("hidden" in repr(getattr(signer, name)) for name in dir(signer))


# Sends.


@pytest.mark.parametrize("encoding", [0, 1])
@pytest.mark.parametrize("code", [310, 10])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
def test_signed_sends_are_taken(lane: ModuleType, encoding: int, code: int, count: int) -> None:
    stream = b"".join(send(number, encoding, code=code) for number in range(count))
    assert check(lane, stream) == len(stream)


@pytest.mark.parametrize("encoding", [0, 1])
@pytest.mark.parametrize("size", [1, 40, 63, 64, 65, 200, 1024, 4096])
def test_bodies_of_any_size(lane: ModuleType, encoding: int, size: int) -> None:
    rng = random.Random(size)
    stream = b"".join(send(n, encoding, rng.randbytes(max(1, size - n))) for n in range(20))
    assert check(lane, stream) == len(stream)


@pytest.mark.parametrize("encoding", [0, 1])
def test_headers_of_several_shapes(lane: ModuleType, encoding: int) -> None:
    rng = random.Random(1)
    stream = b""
    for number in range(60):
        more = {"bname": "b", "maxReconsumeTimes": "3", "producerGroup": f"p{number % 3}"}
        kept = {name: value for name, value in more.items() if rng.random() < 0.5}
        code = rng.choice([310, 310, 10])
        properties = KEY.format(number) + rng.choice(["", "a\x01中\x02", 'b\x01"x\\\x02'])
        stream += send(number, encoding, code=code, properties=properties, **kept)
    assert check(lane, stream) == len(stream)


def test_batches_and_users_with_other_letters(lane: ModuleType) -> None:
    body = batch_body((b"a", KEY.format(1)), (b"bb" * 600, KEY.format(2)))
    stream = b""
    for encoding in (0, 1):
        fields = signed_fields("", body, code=320, user="中文", batch="true")
        header = binary_header if encoding else json_header
        stream += frame(header(fields, code=320), body, encoding)
    assert check(lane, stream, user="中文") == len(stream)


MISTAKES = {
    "not signed": frame(json_header(fields_of(KEY.format(0)))),
    "wrong secret": send(secret="87654321"),
    "another user": send(user="others"),
    "longer name": send(user=USER + "x"),
    "topic without right": send(topic="x" * 127, queueId="0"),
    "no access key": frame(
        json_header(
            {
                name: value
                for name, value in signed_fields(KEY.format(0), b"body", code=310).items()
                if name != ACCESS_KEY
            }
        )
    ),
    "another body": send()[:-1] + b"x",
    "short signature": frame(
        json_header(signed_fields(KEY.format(0), b"body", code=310) | {SIGNATURE: "abc"})
    ),
    "signature twice": frame(
        json_header(signed_fields(KEY.format(0), b"body", code=310)).replace(
            b'"Signature":', b'"Signature":"x","Signature":'
        )
    ),
    "number without quotes": frame(
        json_header(signed_fields(KEY.format(0), b"body", code=310)).replace(b'"e":"1"', b'"e":1')
    ),
    "security token": send(SecurityToken="t"),
    "long text": send(properties=KEY.format(0) + "a\x01" + "v" * 5000 + "\x02"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("before", [0, 1, 5, 15, 16, 33])
def test_a_frame_that_is_not_admitted_is_left_alone(
    lane: ModuleType, name: str, before: int
) -> None:
    """Nothing of it, and nothing of later sends, is in any buffer, offset or count."""
    good = b"".join(send(number, number % 2) for number in range(before))
    assert check(lane, good + MISTAKES[name] + send(90) + send(91)) == len(good)


def test_the_lane_goes_on_after_a_wrong_signature(lane: ModuleType) -> None:
    world = World(lane)
    world.signer = signer_of(lane, world)
    wrong = MISTAKES["wrong secret"]
    data = b"".join(send(number) for number in range(5)) + wrong
    data += b"".join(send(number) for number in range(5, 50))
    at = world.take(data)
    assert (world.lane.verdict, world.lane.frames) == (ODD, 5)
    assert world.take(data, at + len(wrong)) == len(data)
    assert (world.lane.verdict, world.lane.frames, world.lane.answers) == (MORE, 45, 45)
    assert [row[4] for row in world.taken_rows[:8]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sum(world.offsets) == 50


def test_work_in_vain_is_bounded(lane: ModuleType) -> None:
    """After a wrong signature, few sends are taken before signatures are checked."""
    world = World(lane)
    world.signer = signer_of(lane, world)
    wrong = MISTAKES["wrong secret"]
    data = wrong * 40
    for number in range(40):
        assert world.take(data, number * len(wrong)) == number * len(wrong)
        assert not any(world.offsets)
        assert not number or not any(world.records[1000:])
        world.records[:] = bytes(len(world.records))


def test_a_full_buffer_settles_what_was_taken(lane: ModuleType) -> None:
    stream = [send(number) for number in range(9)]
    for wrong in (None, 3, 7):
        frames = list(stream)
        if wrong is not None:
            frames[wrong] = MISTAKES["wrong secret"]
        world = World(lane, row_count=7)
        world.signer = signer_of(lane, world)
        data = b"".join(frames)
        taken = 7 if wrong is None or wrong == 7 else wrong
        assert world.take(data) == sum(map(len, frames[:taken]))
        assert world.lane.verdict == (FULL if taken == 7 else ODD)
        assert sum(world.offsets) == taken


def test_rights_end_when_topics_get_new_numbers(lane: ModuleType) -> None:
    world = World(lane)
    world.signer = signer_of(lane, world)
    data = send()
    assert world.take(data) == len(data)
    table = world.lane.topics
    table.clear(world.offsets)
    number = table.add(b"Orders", QUEUES, 0, 0, True)
    table.set_slot(number, 0, 0)
    assert world.take(data) == 0
    world.signer.allow(number, table.epoch)
    assert world.take(data) == len(data)


def test_many_topics(lane: ModuleType) -> None:
    world = World(lane)
    world.signer = make_signer(lane)
    world.signer.allow(1000, world.lane.topics.epoch)
    assert world.take(send()) == 0
    world.signer.allow(0, world.lane.topics.epoch)
    assert world.take(send()) == len(send())
    assert world.take(send(topic="Tagged")) == 0


@pytest.mark.parametrize("encoding", [0, 1])
def test_signatures_are_ignored_where_access_control_is_off(
    lane: ModuleType, encoding: int
) -> None:
    stream = b"".join(send(number, encoding, secret="any") for number in range(20))
    assert World(lane).check(stream) == len(stream)


@pytest.mark.parametrize("encoding", [0, 1])
def test_no_changed_byte_of_a_header_is_taken(lane: ModuleType, encoding: int) -> None:
    """Opaque number, flags, language and version are not signed; every other byte is."""
    rng = random.Random(encoding)
    first = send(1, encoding)
    for _ in range(150):
        data = bytearray(send(2, encoding))
        at = rng.randrange(8, len(data))
        data[at] ^= 1 << rng.randrange(8)
        taken = check(lane, first + bytes(data))
        if taken > len(first):  # then the ordinary way must find the signature right, too
            fields = _fields_of(bytes(data))
            given = fields.pop(SIGNATURE)
            assert sign(SECRET.encode(), fields, [_body_of(bytes(data))]) == given


def _fields_of(data: bytes) -> dict[str, str]:
    return dict(_command_of(data).fields)


def _body_of(data: bytes) -> bytes:
    return bytes(_command_of(data).body)


def _command_of(data: bytes) -> Any:
    return next(decode_commands(FrameDecoder().feed(data)))
