"""The hard state on disk: no promise is forgotten, whichever file is damaged."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.errors import StoreBroken, StoreError
from rocketpost.model.members import (
    MEMBER_ADDRESS_BYTES_MAX,
    MEMBER_COUNT_MAX,
    MEMBER_NAME_BYTES_MAX,
    TERM_MAX,
    Configuration,
    Member,
)
from rocketpost.store.files import Buffer, RealFiles
from rocketpost.store.member.hard_state import (
    FILE_BYTES,
    HardState,
    HardStateFile,
    HardStateLost,
    decode_state,
    encode_state,
)

GROUP = (
    Configuration(0, (Member("n0", "10.0.0.1:10911"), Member("n1", "10.0.0.2:10911"))),
    Configuration(700, (Member("n0", "10.0.0.1:10911"), Member("n2", "[::1]:7", is_voter=False))),
)
STATE = HardState(7, "n1", 600, 800, GROUP, floor=500)

names = st.text("ab0é", min_size=1, max_size=MEMBER_NAME_BYTES_MAX // 2)
positions = st.integers(0, 2**63 - 1)
members = st.builds(Member, names, st.text("1.:", max_size=20), st.booleans())
states = st.builds(
    HardState,
    st.integers(0, TERM_MAX),
    st.none() | names,
    positions,
    positions,
    st.lists(
        st.builds(Configuration, positions, st.lists(members, max_size=4).map(tuple)), max_size=2
    ).map(tuple),
    st.integers(0, 2),
    positions,
)


def at(tmp_path: Path, files: RealFiles | None = None) -> HardStateFile:
    paths = (str(tmp_path / "hard-state-0"), str(tmp_path / "hard-state-1"))
    return HardStateFile(files or RealFiles(), paths)


@given(number=st.integers(1, 2**63 - 1), state=states)
def test_every_state_is_read_back(number: int, state: HardState) -> None:
    data = encode_state(number, state)
    assert len(data) == FILE_BYTES
    assert decode_state(data) == (number, state)


def test_the_largest_group_fits() -> None:
    member = Member("n" * MEMBER_NAME_BYTES_MAX, "a" * MEMBER_ADDRESS_BYTES_MAX)
    largest = Configuration(2**63 - 1, (member,) * MEMBER_COUNT_MAX)
    state = HardState(TERM_MAX, member.name, 0, 0, (largest, largest), floor=2**63 - 1)
    assert decode_state(encode_state(1, state)) == (1, state)


@pytest.mark.parametrize(
    "state",
    [
        HardState(-1),
        HardState(TERM_MAX + 1),
        HardState(commit=-1),
        HardState(watermark=2**63),
        HardState(floor=-1),
        HardState(vote=""),
        HardState(suspect=4),
        HardState(vote="n" * (MEMBER_NAME_BYTES_MAX + 1)),
        HardState(configurations=(Configuration(0, (Member("n", "a" * 128),)),)),
        HardState(configurations=(Configuration(0, (Member("n", ""),) * 10),)),
        HardState(configurations=GROUP * 2),
    ],
)
def test_an_impossible_state_is_refused(tmp_path: Path, state: HardState) -> None:
    with pytest.raises(StoreError):
        at(tmp_path).save_blocking(state)
    assert not list(tmp_path.iterdir())


def test_every_flipped_bit_is_noticed() -> None:
    whole = encode_state(3, STATE)
    for bit in range(8 * FILE_BYTES):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="CRC"):
            decode_state(bytes(data))


@given(at=st.integers(0, 200), byte=st.integers(0, 255))
def test_impossible_fields_with_a_right_crc_are_noticed(at: int, byte: int) -> None:
    """A file of another version, or of a mistake in the program that wrote it."""
    data = bytearray(encode_state(3, STATE)[:-4])
    data[at] = byte
    sealed = bytes(data) + crc32(data).to_bytes(4, "big")
    with contextlib.suppress(ValueError):
        number, state = decode_state(sealed)
        assert encode_state(number, state) == sealed


def test_nothing_was_saved_yet(tmp_path: Path) -> None:
    file = at(tmp_path)
    assert file.load_blocking() is None
    assert file.state == HardState()


def test_a_state_is_read_back(tmp_path: Path) -> None:
    file = at(tmp_path)
    file.save_blocking(HardState())  # an empty one is a state as well
    assert at(tmp_path).load_blocking() == HardState()
    file.save_blocking(STATE)
    assert file.state == STATE
    again = at(tmp_path)
    assert again.load_blocking() == STATE
    assert at(tmp_path).read_blocking() == STATE
    lowered = STATE._replace(watermark=3, configurations=GROUP[:1], suspect=2)
    again.save_blocking(lowered)
    assert at(tmp_path).load_blocking() == lowered


@pytest.mark.parametrize("change", [{"term": 6}, {"vote": "n0"}, {"vote": None}, {"commit": 599}])
def test_no_promise_can_be_taken_back(tmp_path: Path, change: dict[str, object]) -> None:
    file = at(tmp_path)
    file.save_blocking(STATE)
    with pytest.raises(StoreError, match=r"go back|belongs to n1"):
        file.save_blocking(STATE._replace(**change))  # type: ignore[arg-type]
    assert file.state == STATE
    file.save_blocking(STATE._replace(term=8, vote=None))


def test_saves_are_counted_from_a_higher_number(tmp_path: Path) -> None:
    """The state may be the same: then only the number is saved."""
    file = at(tmp_path)
    file.save_blocking(STATE)
    file.save_blocking(STATE, number_min=40)
    file.save_blocking(STATE, number_min=30)
    assert file.save_count == 40
    file.save_blocking(STATE._replace(commit=700), number_min=40)
    again = at(tmp_path)
    again.load_blocking()
    assert (again.save_count, again.state.commit) == (41, 700)


def test_one_file_is_enough_and_the_other_is_repaired(tmp_path: Path) -> None:
    at(tmp_path).save_blocking(STATE)
    whole = (tmp_path / "hard-state-0").read_bytes()
    for path in (tmp_path / "hard-state-0", tmp_path / "hard-state-1"):
        old = encode_state(1, HardState(1))
        for data in (None, b"", whole[:-1], whole + b"\0", bytes(FILE_BYTES)):
            path.unlink()
            if data is not None:
                path.write_bytes(data)
            assert at(tmp_path).load_blocking() == STATE
            assert path.read_bytes() == whole
        at(tmp_path).load_blocking()
        newer = at(tmp_path)
        newer.load_blocking()
        newer.save_blocking(STATE._replace(term=9, vote=None))
        path.write_bytes(old)  # restored by somebody
        assert at(tmp_path).load_blocking() == STATE._replace(term=9, vote=None)
        for name in ("hard-state-0", "hard-state-1"):
            (tmp_path / name).write_bytes(whole)


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_two_damaged_files_are_a_loss(tmp_path: Path, lost: int | None) -> None:
    at(tmp_path).save_blocking(STATE)
    for number in (0, 1):
        path = tmp_path / f"hard-state-{number}"
        if number == lost:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:100])
    assert at(tmp_path).read_blocking() is None
    with pytest.raises(HardStateLost, match="torn or damaged"):
        at(tmp_path).load_blocking()


class Failing(RealFiles):
    """Files that cannot be written any more."""

    is_full = False

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:  # type: ignore[override]
        if self.is_full:
            raise OSError(errno.EIO, "input/output error")
        return RealFiles.pwrite(fd, data, offset)


def test_after_a_failed_save_nothing_more_is_promised(tmp_path: Path) -> None:
    files = Failing()
    file = at(tmp_path, files)
    file.save_blocking(STATE)
    files.is_full = True
    with pytest.raises(StoreBroken, match="input/output error"):
        file.save_blocking(STATE._replace(term=8, vote=None))
    files.is_full = False
    with pytest.raises(StoreBroken, match="Restart"):
        file.save_blocking(STATE._replace(term=8, vote=None))
    assert file.state == STATE


def test_a_shortage_of_descriptors_is_no_failed_save(tmp_path: Path) -> None:
    class Short(RealFiles):
        is_short = False

        def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
            if self.is_short:
                raise OSError(errno.EMFILE, "too many open files", path)
            return super().open(path, write=write, create=create)

    files = Short()
    file = at(tmp_path, files)
    file.save_blocking(HardState(1))
    files.is_short = True
    file.save_blocking(HardState(2))
    files.is_short = False
    file.close()
    assert at(tmp_path).load_blocking() == HardState(2)


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    file = at(tmp_path)
    file.save_blocking(HardState(1))
    (tmp_path / "hard-state-0").unlink()
    file.save_blocking(HardState(2))
    file.close()
    assert decode_state((tmp_path / "hard-state-0").read_bytes()) == (2, HardState(2))
