from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.store_lock import StoreLock


def test_a_directory_that_cannot_be_created_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lock = StoreLock(RealFiles(), Layout(str(tmp_path / "file" / "store")))
    with pytest.raises(StoreError, match=r"store cannot be created: .*check storePathRootDir"):
        lock.take_blocking()
    assert not lock.is_held
