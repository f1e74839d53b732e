"""Decisions: the most specific rule decides, and none means no."""

from __future__ import annotations

import pytest

from rocketpost.access.decision import decide
from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo
from rocketpost.access.rules import Policies, parse_policies, parse_source
from rocketpost.access.users import User
from rocketpost.access.words import Action, Kind, UserType

NORM = User("norm", "secret")


def policies(custom: str = "", default: str = "") -> Policies:
    """Return rules from texts such as ``+Topic:T=Pub -Topic:*=All``."""

    def read(text: str) -> list[EntryInfo]:
        found = []
        for part in text.split():
            resource, _, actions = part[1:].partition("=")
            decision = "Allow" if part[0] == "+" else "Deny"
            found.append(
                EntryInfo(resource=resource, actions=actions.split(","), decision=decision)
            )
        return found

    kinds = [("Custom", read(custom)), ("Default", read(default))]
    given = [PolicyInfo(policy_type=kind, entries=found) for kind, found in kinds if found]
    return parse_policies(AclInfo(policies=given)) if given else {}


@pytest.mark.parametrize(
    ("custom", "default", "topic", "expected"),
    [
        ("", "", "T", False),
        ("+Topic:T=Pub", "", "T", True),
        ("+Topic:T=Sub", "", "T", False),
        ("+Topic:T=All", "", "T", True),
        ("+Topic:T=Pub -Topic:*=All", "", "T", True),
        ("-Topic:*=All +Topic:pre*=Pub", "", "pre1", True),
        ("-Topic:pre1=Pub +Topic:pre*=Pub", "", "pre1", False),
        ("+Topic:p*=Pub -Topic:pre*=Pub", "", "pre1", False),
        ("-Topic:p*=Pub +Topic:pre*=Pub", "", "pre1", True),
        ("+*=All -Topic:*=Pub", "", "T", False),
        ("+Topic:T=Pub -Topic:T=Pub", "", "T", False),
        ("", "+Topic:*=Pub", "T", True),
        ("-Topic:*=All", "+Topic:T=Pub", "T", False),
        ("+Topic:other=Pub", "+Topic:*=Pub", "T", True),
        ("+Group:T=Pub", "", "T", False),
        ("+Topic:pre*=Pub", "", "*", False),
        ("+Topic:*=Pub", "", "*", True),
    ],
)
def test_the_most_specific_rule_decides(
    custom: str, default: str, topic: str, expected: bool
) -> None:
    verdict = decide(
        NORM,
        policies(custom, default),
        kind=Kind.TOPIC,
        name=topic,
        actions=(Action.PUB,),
        source=parse_source("127.0.0.1"),
    )
    assert verdict.is_allowed is expected
    assert (verdict.rule is None) is (verdict.reason == "no rule matches")


def test_a_super_user_may_do_everything_unless_disabled() -> None:
    root = User("root", "secret", UserType.SUPER)
    denied = policies("-*=All")
    for user, expected in (
        (root, True),
        (User("root", "secret", UserType.SUPER, is_enabled=False), False),
        (User("norm", "secret", is_enabled=False), False),
    ):
        verdict = decide(
            user, denied, kind=Kind.CLUSTER, name="C", actions=(Action.UPDATE,), source=None
        )
        assert verdict.is_allowed is expected, user


def test_the_verdict_names_the_rule() -> None:
    verdict = decide(
        NORM,
        policies("+Topic:pre*=Pub,Sub"),
        kind=Kind.TOPIC,
        name="pre1",
        actions=(Action.SUB,),
        source=None,
    )
    assert verdict.reason == "Custom rule: Allow Pub,Sub on Topic:pre*"
