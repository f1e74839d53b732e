"""The brokers that a sink remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.spark.sink.known_brokers import FILE, _read, _write


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_recorded_brokers_are_read_back(tmp_path: Path, scheme: str) -> None:
    checkpoint = f"{scheme}{tmp_path}/new/checkpoint"
    assert _read(checkpoint) == frozenset()
    _write(checkpoint, frozenset({"b", "a"}))
    assert _read(checkpoint) == {"a", "b"}
    assert (tmp_path / "new/checkpoint" / FILE).read_text() == '["a", "b"]'


def test_a_location_that_arrow_cannot_open_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert _read("odd://place") == frozenset()
    assert "odd://place" in caplog.text
    _write("odd://place", frozenset({"a"}))


def test_a_damaged_list_of_brokers_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(StoreError, match=FILE):
        _read(str(tmp_path))
