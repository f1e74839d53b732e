"""Lists of offsets as users type them."""

from __future__ import annotations

from rocketpost.console.actions.offsets import parse_offsets
from rocketpost.model.route import MessageQueue


def test_offsets_are_read() -> None:
    found = parse_offsets("broker-a:0:12, broker:b:1:7\n", "Orders")
    assert found == {
        MessageQueue("broker-a", 0, "Orders"): 12,
        MessageQueue("broker:b", 1, "Orders"): 7,
    }


def test_another_form_is_no_list() -> None:
    for text in ("", "broker-a", "broker-a:0", "broker-a:0:-1", "broker-a:0:1,rubbish"):
        assert parse_offsets(text, "Orders") == {}
