"""Headers and properties that are read by their shape: the same is taken and made without it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import ModuleType
from unittest.mock import patch

import pytest

from rocketpost.errors import RocketpostError

from .conftest import builds
from .lane_world import World, batch_body, binary_header, fields_of, frame, json_header
from .test_send_lane import PLAIN

LANES = builds("send_lane")
KEY = "UNIQ_KEY\x01C0A8010A00002A9F4E0E2F2A4D07{:04X}\x02"
BYTES = b'\x00\x01\x02\x1f\x80\xff"\\,:{} -09aZ'


@pytest.fixture(params=LANES.values(), ids=list(LANES))
def lane(request: pytest.FixtureRequest) -> ModuleType:
    """Each build of the lane."""
    module: ModuleType = request.param
    return module


def numbered(number: int, encoding: int, more: str = "TAGS\x01TagA\x02") -> bytes:
    """Return a send whose header is as long as those of other numbers."""
    fields = fields_of(
        KEY.format(number) + more,
        queueId=str(number % 4),
        bornTimestamp=str(1_700_000_000_000 + number),
    )
    if encoding:
        return frame(binary_header(fields, opaque=number), b"body", 1)
    return frame(json_header(fields, opaque=1000 + number))


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return a frame of the same size with another byte in its header."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(8, len(data) - 4)
        changed[at] = rng.choice([*BYTES, changed[at] ^ 1 << rng.randrange(8)])
    return bytes(changed)


def check_mutations(lane: ModuleType, encoding: int, count: int) -> int:
    """Send changed frames after one whose shape is known; return how many were taken."""
    rng = random.Random(encoding)
    taken = 0
    for number in range(count):
        first, second = numbered(0, encoding), mutated(rng, numbered(number, encoding))
        is_taken = World(lane).check(first + second) == len(first + second)
        assert is_taken == (World(lane).take(second) == len(second)), second
        taken += is_taken
    return taken


@pytest.mark.parametrize("encoding", [0, 1])
def test_values_are_those_of_the_frame(lane: ModuleType, encoding: int) -> None:
    stream = b"".join(numbered(number, encoding) for number in range(40))
    assert World(lane).check(stream) == len(stream)


@pytest.mark.parametrize("encoding", [0, 1])
@pytest.mark.parametrize(
    "texts",
    [
        ("a\x01\xe9\x02", "a\x01bc\x02"),
        ("a\x01/\x02", "a\x01\\\x02"),
        ('a\x01"x\x02', "a\x01\n\x02"),
        ("订单\x01北京\x02", "TAGS\x01订单\x02"),
    ],
)
def test_properties_may_differ_in_any_way(
    lane: ModuleType, encoding: int, texts: tuple[str, str]
) -> None:
    stream = b"".join(numbered(number, encoding, texts[number % 2]) for number in range(30))
    assert World(lane).check(stream) == len(stream)


def test_shapes_that_alternate_or_change_for_good(lane: ModuleType) -> None:
    rng = random.Random(1)
    names = [name for name in PLAIN if name != "largest body"]
    for _ in range(12):
        some = [PLAIN[name] for name in rng.sample(names, 3)]
        stream = b"".join(each * rng.choice([1, 2, 12]) for each in some * 3)
        assert World(lane).check(stream) == len(stream)


@pytest.mark.parametrize("encoding", [0, 1])
def test_a_changed_header_is_taken_as_if_no_shape_were_known(
    lane: ModuleType, encoding: int
) -> None:
    taken = check_mutations(lane, encoding, 250)
    assert 10 < taken < 240


def items(*texts: str) -> bytes:
    """Return a batch of messages with these properties."""
    header = json_header(fields_of("", batch="true"), code=320)
    return frame(header, batch_body(*[(b"body", text) for text in texts]))


def check_changed_items(lane: ModuleType, count: int) -> int:
    """Send batches whose second message has changed properties; return how many were taken."""
    rng = random.Random(3)
    taken = 0
    for number in range(count):
        first = KEY.format(0) + "TAGS\x01TagA\x02"
        changed = bytearray(KEY.format(number) + "TAGS\x01TagA\x02", "latin-1")
        for _ in range(rng.choice([1, 1, 2])):
            at = rng.randrange(len(changed))
            changed[at] = rng.choice([*b'\x00\x01\x02\x1f"\\Aa ', changed[at] ^ 1])
        second = changed.decode("latin-1")
        data = items(first, second, first)
        is_taken = World(lane).check(data) == len(data)
        assert is_taken == (World(lane).take(items(second)) > 0), second
        taken += is_taken
    return taken


def test_the_messages_of_a_batch_are_read_by_the_first(lane: ModuleType) -> None:
    texts = [KEY.format(number) + "TAGS\x01TagA\x02KEYS\x01k1 k2\x02" for number in range(40)]
    data = items(*texts)
    assert World(lane).check(data + data) == 2 * len(data)


def test_a_changed_message_of_a_batch_is_taken_as_if_no_shape_were_known(lane: ModuleType) -> None:
    taken = check_changed_items(lane, 250)
    assert 10 < taken < 240


@pytest.mark.parametrize(
    "text",
    [
        "a\x01\xe9\x02UNIQ_KEY\x01{:08X}\x02",
        "a\x01订\x02UNIQ_KEY\x01{:08X}\x02TAGS\x01订\x02",
        'a\x01"\\\n\x02UNIQ_KEY\x01{:08X}\x02',
        "UNIQ_KEY\x01{:08X}",
        "KEYS\x01{0:08X}\x02UNIQ_KEY\x01{0:08X}\x02",
        "__SHARDINGKEY\x01s\x02UNIQ_KEY\x01{:08X}\x02",
    ],
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_the_unique_key_may_be_anywhere(lane: ModuleType, text: str, is_ascii: bool) -> None:
    frames = []
    for number in range(20):
        header = json.loads(json_header(fields_of(text.format(number))))
        frames.append(frame(json.dumps(header, ensure_ascii=is_ascii).encode()))
    stream = b"".join(frames)
    assert World(lane).check(stream) == (len(stream) if World(lane).take(frames[0]) else 0)


def test_settings_forget_what_was_plain(lane: ModuleType) -> None:
    world = World(lane)
    data = numbered(1, 0, "a\x01b\x02")
    assert world.take(data) == len(data)
    world.configure(special=["a"])
    assert world.take(data) == 0


@pytest.fixture
def forgetful() -> Iterator[ModuleType]:
    """The lane with a planted mistake: of headers, nothing is compared but the size."""
    with patch.object(LANES["plain"].SendShape, "_is_same", lambda self, p, at: True):
        yield LANES["plain"]


@pytest.fixture
def credulous() -> Iterator[ModuleType]:
    """The lane with another planted mistake: any bytes are a unique key."""
    names = LANES["plain"].PropertyShape.read.__globals__
    with patch.dict(names, is_quotable=lambda p, at, end: True):
        yield LANES["plain"]


@pytest.mark.parametrize("encoding", [0, 1])
@pytest.mark.parametrize("mistake", ["forgetful", "credulous"])
def test_planted_mistakes_are_found(
    request: pytest.FixtureRequest, mistake: str, encoding: int
) -> None:
    wrong: ModuleType = request.getfixturevalue(mistake)
    with pytest.raises((AssertionError, RocketpostError)):
        check_mutations(wrong, encoding, 250)


def test_a_planted_mistake_in_batches_is_found(credulous: ModuleType) -> None:
    with pytest.raises((AssertionError, RocketpostError)):
        check_changed_items(credulous, 250)
