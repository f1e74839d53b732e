from __future__ import annotations

import pytest

from rocketpost.server.secure.exposure import find_exposure
from rocketpost.transport.entrance import EntranceRules


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.1.2.3", "fe80::1", "broker.shop"])
def test_other_machines_get_in_without_a_login(host: str) -> None:
    text = find_exposure(host, authenticates=False)
    assert text.startswith(f"it listens on {host or '0.0.0.0'} and checks no user")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_only_this_machine_gets_in(host: str) -> None:
    assert not find_exposure(host, authenticates=False)


def test_a_login_or_a_required_certificate_keeps_strangers_out() -> None:
    assert not find_exposure("0.0.0.0", authenticates=True)
    assert find_exposure("0.0.0.0", authenticates=False, rules=EntranceRules())
    certified = EntranceRules(certifies_clients=True)
    assert not find_exposure("0.0.0.0", authenticates=False, rules=certified)
