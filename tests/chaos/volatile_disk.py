"""A disk that forgets, for real processes: SIGKILL plus :func:`cut_power` is a power cut.

A broker that runs with :func:`install` works on its files as always, but every sync also copies
what was synced to a mirror: a file's bytes and length by ``fdatasync``, a directory's names by
``fsync_dir``. After the kill :func:`cut_power` makes the store what a disk could hold: what was
synced, plus any part of what was not.

Files and directories are known by an id in an extended attribute, which renames keep.

    MIRROR/files/ID        bytes as last synced
    MIRROR/directories/ID  JSON {name: [id, is directory]} as last synced
    MIRROR/boot            boot id of the machine, another one after each power cut
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096
_ATTRIBUTE = "user.volatile_disk"
_ROOT = "root"
_BOOT = "boot"


def is_supported(directory: Path) -> bool:
    """Tell whether files there can carry an id."""
    probe = directory / "probe"
    probe.touch()
    try:
        os.setxattr(probe, _ATTRIBUTE, b"x")
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


# -- in the broker


def install(store: str, mirror: str, *, sync_seconds: float = 0.0) -> None:
    """Have every sync of this process copied to ``mirror``, after it has taken its time."""
    from rocketpost.store.files import RealFiles

    recorder = _Recorder(Path(store), Path(mirror), sync_seconds=sync_seconds)
    RealFiles.fdatasync = recorder.fdatasync  # type: ignore[method-assign]
    RealFiles.fsync_dir = recorder.fsync_dir  # type: ignore[method-assign]
    RealFiles.sync_all = recorder.sync_all  # type: ignore[method-assign]
    RealFiles.boot_id = recorder.boot_id  # type: ignore[method-assign]
    for name in ("rename", "unlink", "rmdir", "mkdir", "open"):
        setattr(RealFiles, name, recorder.locked(getattr(RealFiles(), name)))


class _Recorder:
    def __init__(self, store: Path, mirror: Path, *, sync_seconds: float) -> None:
        self._sync_seconds = sync_seconds
        self._store = store
        self._files = mirror / "files"
        self._directories = mirror / "directories"
        for directory in (self._files, self._directories):
            directory.mkdir(parents=True, exist_ok=True)
        self._naming = threading.RLock()

    def locked(self, call: Callable[..., Any]) -> Any:
        """Return ``call`` such that no directory changes while it is recorded."""

        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._naming:
                return call(*args, **kwargs)

        return staticmethod(locked)

    def boot_id(self) -> str:
        path = self._files.with_name(_BOOT)
        return path.read_text() if path.exists() else "first"

    def fdatasync(self, fd: int) -> None:
        time.sleep(self._sync_seconds)
        target = os.open(self._files / _identity(fd), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            size = os.fstat(fd).st_size
            at = 0
            while at < size and (data := os.pread(fd, 1 << 20, at)):
                os.pwrite(target, data, at)
                at += len(data)
            os.ftruncate(target, size)
        finally:
            os.close(target)

    def fsync_dir(self, path: str) -> None:
        entries = {}
        with self._naming, os.scandir(path) as found:
            for entry in found:
                entries[entry.name] = [_identity(entry.path), entry.is_dir()]
        identity = _ROOT if Path(path) == self._store else _identity(path)
        target = self._directories / identity
        temporary = self._directories / f"{identity}.{uuid.uuid4().hex}"
        temporary.write_text(json.dumps(entries))
        temporary.rename(target)

    def sync_all(self, path: str) -> bool:
        with self._naming:
            self._sync_tree()
        return True

    def _sync_tree(self) -> None:
        for directory, _, names in os.walk(self._store):
            for name in names:
                fd = os.open(os.path.join(directory, name), os.O_RDONLY)
                try:
                    self.fdatasync(fd)
                finally:
                    os.close(fd)
            self.fsync_dir(directory)


def _identity(file: int | str | Path) -> str:
    try:
        return os.getxattr(file, _ATTRIBUTE).decode()
    except OSError:
        identity = uuid.uuid4().hex
        os.setxattr(file, _ATTRIBUTE, identity.encode())
        return identity


# -- in the test


def cut_power(store: Path, mirror: Path, rng: random.Random) -> None:
    """Make ``store`` what a disk could hold that lost power when the broker was killed."""
    old = store.with_name(store.name + ".before")
    shutil.rmtree(old, ignore_errors=True)
    if store.exists():
        store.rename(old)
    store.mkdir(parents=True)
    (mirror / _BOOT).write_text(uuid.uuid4().hex)
    names_survive = rng.random() < 0.5
    _restore(old, store, _ROOT, mirror, rng, names_survive)
    shutil.rmtree(old, ignore_errors=True)


def _restore(
    old: Path, new: Path, identity: str, mirror: Path, rng: random.Random, names_survive: bool
) -> None:
    listed = mirror / "directories" / identity
    entries: dict[str, Any] = json.loads(listed.read_text()) if listed.exists() else {}
    if names_survive and old.is_dir():
        entries = {entry.name: [_identity(entry.path), entry.is_dir()] for entry in os.scandir(old)}
    for name, (child, is_directory) in entries.items():
        path = new / name
        if is_directory:
            path.mkdir()
            os.setxattr(path, _ATTRIBUTE, child.encode())
            _restore(old / name, path, child, mirror, rng, names_survive)
        else:
            path.write_bytes(_contents(old / name, mirror / "files" / child, child, rng))
            os.setxattr(path, _ATTRIBUTE, child.encode())
            # What is on disk now is synced.
            shutil.copyfile(path, mirror / "files" / child)
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(json.dumps(entries))


def _contents(old: Path, synced: Path, identity: str, rng: random.Random) -> bytes:
    """Return what was synced, or what was written, or some pages of each."""
    kept = synced.read_bytes() if synced.exists() else b""
    if not old.is_file() or _identity(old) != identity:
        return kept
    written = old.read_bytes()
    choice = rng.randrange(3)
    if choice == 0:
        return kept
    if choice == 1:
        return written
    share = rng.choice((0.5, 0.9, 0.97))
    size = rng.choice((len(kept), len(written)))
    mixed = bytearray(kept.ljust(size, b"\0")[:size])
    for at in range(0, size, PAGE_BYTES):
        if rng.random() < share:
            page = written[at : at + PAGE_BYTES]
            mixed[at : at + len(page)] = page[: size - at]
    return bytes(mixed)
