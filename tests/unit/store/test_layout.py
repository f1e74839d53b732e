from __future__ import annotations

import pytest

from rocketpost.store.layout import Layout, file_name, parse_file_name, parse_queue_id


def test_names_are_twenty_digits_and_come_back() -> None:
    assert file_name(1073741824) == "00000000001073741824"
    assert parse_file_name("00000000001073741824") == 1073741824


@pytest.mark.parametrize("name", ["", "abort", "0000", "0000000000000000000x", "0" * 21])
def test_other_names_are_refused(name: str) -> None:
    assert parse_file_name(name) is None


def test_queue_ids_are_plain_numbers() -> None:
    assert parse_queue_id("0") == 0
    assert parse_queue_id("17") == 17
    assert parse_queue_id("01") is None
    assert parse_queue_id("x") is None


def test_paths_are_those_of_rocketmq() -> None:
    layout = Layout("/s")
    assert layout.segment(0) == "/s/commitlog/00000000000000000000"
    assert layout.queue("%RETRY%g", 3) == "/s/consumequeue/%RETRY%g/3"
    assert layout.checkpoint == "/s/checkpoint"
    assert Layout("/s", "/fast/log").segment(0) == "/fast/log/00000000000000000000"
