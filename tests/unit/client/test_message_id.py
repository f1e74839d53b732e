from __future__ import annotations

import os
import re
import time
from datetime import datetime

import pytest

from rocketpost.client import message_id
from rocketpost.client.message_id import month_bounds_ms, unique_id


def test_ids_look_like_javas_and_never_repeat() -> None:
    ids = [unique_id() for _ in range(10_000)]
    assert len(set(ids)) == 10_000
    assert re.fullmatch(r"[0-9A-F]{32}", ids[0])
    assert int(ids[0][8:12], 16) == os.getpid() & 0xFFFF


def test_a_forked_child_makes_ids_of_its_own() -> None:
    mine = unique_id()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.write(write_end, unique_id().encode())
        os._exit(0)
    os.close(write_end)
    theirs = os.read(read_end, 100).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    assert theirs[:20] != mine[:20]  # address, process and the drawn part
    assert unique_id()[:20] == mine[:20]


def test_the_time_in_an_id_counts_from_the_local_month(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ends = month_bounds_ms(int(datetime(2024, 2, 29, 23, 59).timestamp() * 1000))
    assert datetime.fromtimestamp(began / 1000) == datetime(2024, 2, 1)
    assert datetime.fromtimestamp(ends / 1000) == datetime(2024, 3, 1)
    december = int(datetime(2030, 12, 31, 23).timestamp() * 1000)
    assert datetime.fromtimestamp(month_bounds_ms(december)[1] / 1000) == datetime(2031, 1, 1)
    now_ms = int(datetime(2124, 5, 1, 0, 0, 1).timestamp() * 1000)
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    ids = message_id._Ids()
    assert int(ids.next()[20:28], 16) == 1000
    later_ms = int(datetime(2124, 6, 1, 0, 0, 2).timestamp() * 1000)
    monkeypatch.setattr(time, "time_ns", lambda: later_ms * 1_000_000)
    assert int(ids.next()[20:28], 16) == 2000
