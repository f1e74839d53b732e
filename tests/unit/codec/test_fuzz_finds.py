"""What fuzzing found, each as a test of its own, and every saved input once more."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.codec.bodies.client import decode_heartbeat
from rocketpost.codec.command import Command, decode_command
from rocketpost.codec.faults import InvalidParameter
from rocketpost.codec.frames import Frame
from rocketpost.codec.headers.message import SendMessage
from rocketpost.codec.lenient_json import decode_any, standardize
from rocketpost.errors import RemoteProtocolError

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT / "fuzz" / "corpus"
DEEP = 20_000


@pytest.fixture(scope="module")
def fuzz_package() -> Iterator[None]:
    sys.path.insert(0, str(ROOT))
    yield
    sys.path.remove(str(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("*") if path.is_dir()))
@pytest.mark.usefixtures("fuzz_package")
def test_every_saved_input_is_harmless(name: str) -> None:
    from fuzz.targets import load

    target = load(name)
    try:
        for path in sorted((CORPUS / name).iterdir()):
            target.check(path.read_bytes())
    finally:
        target.close()


def header(fields: bytes) -> Command:
    return decode_command(Frame(0, b'{"code":10,"extFields":' + fields + b"}", b""))


@pytest.mark.parametrize(
    "data",
    [
        b'{"code":1,"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"code":1,"extFields":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        b'{"code":1,"language":' + b"[" * DEEP + b"]" * DEEP + b"}",
    ],
)
def test_a_header_nested_deeply_is_the_peers_mistake(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_command(Frame(0, data, b""))


@pytest.mark.parametrize("depth", [100, 480, 600, DEEP])
def test_a_body_nested_deeply_is_the_peers_mistake(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    with pytest.raises(RemoteProtocolError):
        decode_heartbeat(b'{"clientID":"c","consumerDataSet":[' + nested + b"]}")
    with pytest.raises(RemoteProtocolError):
        decode_any(nested[:depth])


def test_keys_within_keys_do_not_explode() -> None:
    # Each level doubled the backslashes: 25 levels made 130 MB of 160 bytes.
    text = b'{"a":1}'
    for _ in range(60):
        text = b"{" + text + b":1}"
    assert len(standardize(text)) < 2 * len(text)
    with pytest.raises(RemoteProtocolError):
        decode_any(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [b"{", b",", b"1:2,", b"{}:1,", b'"', b'\\"', b'{"', b", ", b",{", b"[{},"]
)
def test_hostile_json_costs_little(piece: bytes) -> None:
    text = b"{" + piece * (4 * 1024 * 1024 // len(piece))
    start = time.process_time()
    with pytest.raises(RemoteProtocolError):
        decode_any(text)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "field",
    [b'"flag":"2147483648"', b'"bornTimestamp":"9223372036854775808"', b'"sysFlag":"-2147483649"',
     b'"reconsumeTimes":"99999999999"', b'"queueId":"1e99"'],
)  # fmt: skip
def test_numbers_wider_than_the_record_are_refused_when_decoded(field: bytes) -> None:
    command = header(b'{"producerGroup":"P","topic":"T",' + field + b"}")
    with pytest.raises(InvalidParameter):
        command.read(SendMessage)
