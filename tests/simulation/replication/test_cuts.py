"""The stream is cut at every byte of frames and reports, and damaged at every byte of a record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from .group import Group
from .network import Link, Pipe

QUICK = 59


class CutPipe(Pipe):
    """A pipe that breaks, or flips a bit, after a number of bytes."""

    def __init__(self, at: int, *, flips: bool = False) -> None:
        super().__init__(10**9)
        self.left = at
        self.flips = flips
        self.is_over = False

    def read(self, size: int) -> bytes:
        data = super().read(size)
        if self.is_over or len(data) <= self.left:
            self.left -= len(data)
            return data
        self.is_over = True
        if self.flips:
            flipped = bytearray(data)
            flipped[self.left] ^= 4
            return bytes(flipped)
        data = data[: self.left]
        self.data.clear()
        self.is_cut = True
        return data


def cut_once(direction: str, at: int, *, flips: bool = False, **options: Any) -> bool:
    """Break the first connection after some bytes; False if it never had as many."""
    rng = random.Random(1)
    group = Group(rng, window_bytes=4000, append_checksum=flips, **options)
    while group.master.store.end_position < group.config.segment_bytes + 1000:
        group.master.world.send(rng, 5)
    (slave,) = group.ours
    slave.tolerates_faults = flips
    link = Link(slave.host, slave.broker_id, capacity=10**9, speed=3000)
    pipe = CutPipe(at, flips=flips)
    setattr(link, direction, pipe)
    group.flush_master()
    slave.connect(group.master, link, 0)
    while slave.link is link and not group.is_healed():
        group.step_in_turn()
        group.check()
        if link.down.is_cut or link.up.is_cut:
            link.cut(rng)
    group.heal()
    group.lose_master()
    return pipe.is_over


def places(step: int) -> Iterator[int]:
    place = 0
    while True:
        yield place
        place += step


def sweep(direction: str, step: int, **options: Any) -> int:
    for place in places(step):
        if not cut_once(direction, place, **options):
            return place
    raise AssertionError


@pytest.mark.parametrize("batch_bytes", [130, 5000])
def test_cuts_within_frames(batch_bytes: int) -> None:
    assert sweep("down", QUICK * 3, batch_bytes=batch_bytes) > 9000


def test_cuts_within_reports() -> None:
    assert sweep("up", 1, batch_bytes=5000) > 20


@pytest.mark.long
@pytest.mark.parametrize("batch_bytes", [130, 5000])
def test_cuts_at_every_byte(batch_bytes: int) -> None:
    sweep("down", 1, batch_bytes=batch_bytes)
    sweep("up", 1, batch_bytes=batch_bytes)


def test_damage_on_the_way() -> None:
    """A record with a checksum is taken as the master has it, or not at all."""
    assert sweep("down", QUICK * 5, batch_bytes=5000, flips=True) > 9000


@pytest.mark.long
@pytest.mark.parametrize("batch_bytes", [130, 5000])
def test_damage_at_every_byte(batch_bytes: int) -> None:
    sweep("down", 1, batch_bytes=batch_bytes, flips=True)
