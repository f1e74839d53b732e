from __future__ import annotations

from typing import Any

import pytest

from rocketpost.errors import ConfigError, RemoteProtocolError
from rocketpost.server.settings.certificate_users import CertificateUsers, parse_user_rules

CERTIFICATE: dict[str, Any] = {
    "subject": ((("organizationName", "shop"),), (("commonName", "orders"),)),
    "subjectAltName": (
        ("DNS", "orders.shop"),
        ("URI", "spiffe://shop/team/orders"),
        ("email", "orders@shop.example"),
        ("IP Address", "10.0.0.1"),
    ),
}


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("", ""),
        ("CN", "orders"),
        ("dns", "orders.shop"),
        ("EMAIL", "orders@shop.example"),
        ("URI~spiffe://shop/team/(.+)", "orders"),
        ("URI~spiffe://bank/(.+); CN", "orders"),
        ("DNS~(.+)\\.bank", ""),
        ("CN~ord", ""),
        ("CN~or.*", "orders"),
    ],
)
def test_the_first_rule_that_finds_something_decides(rules: str, user: str) -> None:
    assert CertificateUsers(parse_user_rules(rules)).find(CERTIFICATE) == user


def test_a_certificate_of_two_users_is_nobodys() -> None:
    two = {"subjectAltName": (("DNS", "a"), ("DNS", "b"))}
    with pytest.raises(RemoteProtocolError, match="several users"):
        CertificateUsers(parse_user_rules("DNS")).find(two)
    assert CertificateUsers(parse_user_rules("DNS~(a)")).find(two) == "a"


def test_long_names_are_not_compared() -> None:
    long = {"subject": ((("commonName", "a" * 300),),)}
    assert CertificateUsers(parse_user_rules("CN")).find(long) == ""


@pytest.mark.parametrize("text", ["OU", "CN~(", "CN~(a)(b)", "~x"])
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tls\.server\.userRules"):
        parse_user_rules(text)
