"""Headers that are read by their shape: the lane must take, and make, the same as without it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType
from unittest.mock import patch

import pytest

from rocketpost.errors import RocketpostError

from .conftest import builds
from .lane_world import World, binary_header, fields_of, frame, json_header
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


@pytest.fixture
def forgetful() -> Iterator[ModuleType]:
    """The lane with a planted mistake: nothing is compared but the size."""
    shapes = LANES["plain"].SendShape
    with patch.object(shapes, "_is_same", lambda self, p, at: True):
        yield LANES["plain"]


@pytest.mark.parametrize("encoding", [0, 1])
def test_a_planted_mistake_is_found(forgetful: ModuleType, encoding: int) -> None:
    with pytest.raises((AssertionError, RocketpostError)):
        check_mutations(forgetful, encoding, 250)
