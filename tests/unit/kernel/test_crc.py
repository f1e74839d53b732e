from __future__ import annotations

from types import ModuleType
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st


@given(data=st.binary(max_size=400), may_fold=st.booleans())
def test_the_checksum_is_that_of_zlib(kernel: ModuleType, data: bytes, may_fold: bool) -> None:
    assert kernel.checksum(data, may_fold) == crc32(data)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 79, 80, 127, 128, 1023, 1024, 70_001])
def test_every_border_of_the_blocks(kernel: ModuleType, size: int) -> None:
    data = bytes(i * 7 + i // 256 & 0xFF for i in range(size))
    assert kernel.checksum(data) == crc32(data)
    assert kernel.checksum(data, False) == crc32(data)
    assert kernel.checksum(bytes(size)) == crc32(bytes(size))
    assert kernel.checksum(b"\xff" * size) == crc32(b"\xff" * size)
