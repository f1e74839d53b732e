from __future__ import annotations

from rocketpost.model.hosts import host_text


def test_an_ipv6_address_is_in_brackets() -> None:
    assert host_text(("10.0.0.1", 1)) == "10.0.0.1:1"
    assert host_text(("fe80::1", 1)) == "[fe80::1]:1"
