"""Damage to the files of a member that does not run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LOCK: Final = "lock"


def _files(store: Path) -> list[Path]:
    """Return the files of a store that are not empty, in a fixed order."""
    found = [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != _LOCK]
    return [path for path in found if path.stat().st_size]


def _choose(store: Path, rng: random.Random) -> Path:
    """Return a file; each directory is as likely as every other."""
    by_directory: dict[Path, list[Path]] = {}
    for path in _files(store):
        relative = path.relative_to(store)
        by_directory.setdefault(Path(relative.parts[0]), []).append(path)
    return rng.choice(by_directory[rng.choice(sorted(by_directory))])


def _written_bytes(data: bytes) -> int:
    """Return the length of a file without the zeros at its end."""
    return len(data.rstrip(b"\0"))


def flip_a_bit(store: Path, old: Path, rng: random.Random) -> str:
    """Flip one bit anywhere in a file, before its last byte that is not zero."""
    path = _choose(store, rng)
    data = bytearray(path.read_bytes())
    at = rng.randrange(max(1, _written_bytes(data)))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"bit flipped at {at} of {path.relative_to(store)}"


def flip_bits_of_the_log(store: Path, old: Path, rng: random.Random) -> str:
    """Flip some bits of the commit log."""
    paths = [path for path in _files(store / "commitlog") if _written_bytes(path.read_bytes())]
    path = rng.choice(paths)
    data = bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 20)):
        data[rng.randrange(_written_bytes(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"bits flipped in {path.relative_to(store)}"


def truncate(store: Path, old: Path, rng: random.Random) -> str:
    """Cut a file off anywhere."""
    path = _choose(store, rng)
    size = rng.randrange(path.stat().st_size)
    with path.open("rb+") as file:
        file.truncate(size)
    return f"{path.relative_to(store)} cut off at {size}"


def zero_the_end(store: Path, old: Path, rng: random.Random) -> str:
    """Make the end of the log zeros, as a disk that lost its last writes."""
    path = [path for path in _files(store / "commitlog") if _written_bytes(path.read_bytes())][-1]
    data = path.read_bytes()
    keep = rng.randrange(_written_bytes(data))
    path.write_bytes(data[:keep] + bytes(len(data) - keep))
    return f"zeros from {keep} on in {path.relative_to(store)}"


def delete(store: Path, old: Path, rng: random.Random) -> str:
    """Delete a file."""
    path = _choose(store, rng)
    path.unlink()
    return f"{path.relative_to(store)} deleted"


def restore_old_file(store: Path, old: Path, rng: random.Random) -> str:
    """Replace a file by an older copy of it."""
    path = _choose(old, rng)
    relative = path.relative_to(old)
    target = store / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    return f"an old {relative} restored"


def restore_old_directory(store: Path, old: Path, rng: random.Random) -> str:
    """Replace a directory of the store by an older copy of it."""
    name = rng.choice(sorted(path.name for path in old.iterdir() if path.is_dir()))
    shutil.rmtree(store / name, ignore_errors=True)
    shutil.copytree(old / name, store / name)
    return f"an old {name}/ restored"


def lose_everything(store: Path, old: Path, rng: random.Random) -> str:
    """Delete the whole store."""
    shutil.rmtree(store)
    return "everything deleted"


KINDS: Final[tuple[Callable[[Path, Path, random.Random], str], ...]] = (
    flip_a_bit,
    flip_bits_of_the_log,
    truncate,
    zero_the_end,
    delete,
    restore_old_file,
    restore_old_directory,
    lose_everything,
)
"""Each takes a store and an older copy of it, and returns what it did."""
