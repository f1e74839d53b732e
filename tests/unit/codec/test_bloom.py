"""Bits of RocketMQ's bloom filter, as its own classes compute them."""

from __future__ import annotations

import pytest

from rocketpost.codec.bloom import BloomShape, bloom_positions, bloom_shape


def test_the_shape_of_the_default_settings() -> None:
    assert bloom_shape(20, 32) == BloomShape(3, 112)
    assert bloom_shape(1, 32) == BloomShape(7, 312)


@pytest.mark.parametrize("text", ["", "G#T", "größe#T", "x" * 100])
def test_positions_are_bits_of_the_filter(text: str) -> None:
    shape = bloom_shape(20, 32)
    positions = bloom_positions(text, shape)
    assert len(positions) == shape.hash_count
    assert all(0 <= each < shape.bit_count for each in positions)
