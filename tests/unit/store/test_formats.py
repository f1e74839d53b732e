"""The worked examples of ``docs/formats`` are true."""

from __future__ import annotations

from pathlib import Path

from rocketpost.codec.record import decode_record, encode_record
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.members import Configuration, Member
from rocketpost.store.checkpoint import Progress, Times, encode_checkpoint
from rocketpost.store.files import RealFiles
from rocketpost.store.member.hard_state import HardState, encode_state
from rocketpost.store.member.term_file import decode_terms
from rocketpost.store.queue.files import ENTRY
from rocketpost.store.recovery.extent import Extent, ExtentFile
from rocketpost.store.replica.truncation import TruncationFile

FORMATS = Path(__file__).parents[3] / "docs" / "formats"


def example(name: str) -> str:
    return (FORMATS / name).read_text().rpartition("## Example")[2].split("```")[1]


def test_the_record() -> None:
    data = bytes.fromhex(example("commit-log.md"))
    assert b"".join(encode_record(decode_record(data))) == data


def test_the_queue_entry() -> None:
    data = bytes.fromhex(example("consume-queue.md"))
    assert data == ENTRY.pack(123456, 112, string_hash("TagA"))


def test_the_checkpoint() -> None:
    data = encode_checkpoint(
        Times(1700000000001, 1700000000001, 0, 0, 0), Progress(123568, 123568, 123456, 2, 9)
    )
    for line in example("checkpoint.md").strip().splitlines():
        at, _, text = line.strip().partition("  ")
        part = bytes.fromhex(text)
        assert data[int(at) : int(at) + len(part)] == part


def test_the_extent(tmp_path: Path) -> None:
    text = (FORMATS / "extent.md").read_text()
    path = tmp_path / "extent"
    path.write_bytes(bytes.fromhex(text.split("```")[1]))
    assert ExtentFile(RealFiles(), str(path)).load_blocking() == Extent(0, 123568, 0)


def test_the_cut(tmp_path: Path) -> None:
    text = (FORMATS / "extent.md").read_text().rpartition("## `truncating`")[2]
    path = tmp_path / "truncating"
    path.write_bytes(bytes.fromhex(text.split("```")[1]))
    assert TruncationFile(RealFiles(), str(path)).load_blocking() == 123456


def test_the_term_table() -> None:
    text = (FORMATS / "group-member.md").read_text().split("```")[1]
    assert decode_terms(text.lstrip("\n").encode()) == ((7, 7000), (8, 8000))


def test_the_hard_state() -> None:
    text = (FORMATS / "group-member.md").read_text().split("```")[3]
    members = (Member("n0", "a:1"),)
    state = HardState(7, "n1", 600, 800, (Configuration(0, members),))
    assert encode_state(2, state)[:-4].rstrip(b"\0") == bytes.fromhex(text)
