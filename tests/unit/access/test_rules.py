"""Rules: their texts, what they match, and the order in which they decide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo
from rocketpost.access.rules import (
    ENTRIES_MAX,
    acl_info,
    merge,
    parse_entry,
    parse_policies,
    parse_resource,
    parse_source,
    parse_sources,
    without,
)
from rocketpost.access.words import Action, Kind, PolicyType
from rocketpost.errors import NoPermission


def entry(resource: str, actions: str = "Pub", decision: str = "Allow", ips: str = "") -> EntryInfo:
    return EntryInfo(
        resource=resource,
        actions=actions.split(","),
        decision=decision,
        source_ips=ips.split(",") if ips else None,
    )


@pytest.mark.parametrize(
    ("text", "kind", "name", "expected"),
    [
        ("*", Kind.TOPIC, "T", True),
        ("*", Kind.CLUSTER, "*", True),
        ("Topic:*", Kind.TOPIC, "T", True),
        ("Topic:*", Kind.TOPIC, "*", True),
        ("Topic:*", Kind.GROUP, "T", False),
        ("topic:T", Kind.TOPIC, "T", True),
        ("Topic:T", Kind.TOPIC, "t", False),
        ("Topic:T", Kind.TOPIC, "TT", False),
        ("Topic:T*", Kind.TOPIC, "TT", True),
        ("Topic:T*", Kind.TOPIC, "T", True),
        ("Topic:T*", Kind.TOPIC, "*", False),
        ("Topic:T*", Kind.TOPIC, "aT", False),
        ("Namespace:n", Kind.TOPIC, "n", False),
        ("Group:ns%g", Kind.GROUP, "ns%g", True),
    ],
)
def test_a_resource_covers_these_names(text: str, kind: Kind, name: str, expected: bool) -> None:
    assert parse_resource(text).covers(kind, name) is expected


@pytest.mark.parametrize(
    "text", ["*", "Topic:*", "Topic:a*", "Group:a", "Cluster:C", "Namespace:n"]
)
def test_the_text_of_a_resource_reads_back(text: str) -> None:
    assert str(parse_resource(text)) == text


@pytest.mark.parametrize(
    "text", ["", "T", "Topic:", "Any:*", "Queue:q", "Topic:a*b", "Topic:a*b*", "Topic:" + "x" * 600]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(NoPermission):
        parse_resource(text)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (entry("T"), "resource is null"),
        (entry("Topic:T", "Any"), "can not be Any"),
        (entry("Topic:T", "Pub,Fly"), "'Fly' is unknown"),
        (EntryInfo(resource="Topic:T", decision="Allow"), "actions is empty"),
        (entry("Topic:T", decision="Maybe"), "decision is null"),
        (entry("Topic:T", ips="192.168.1.*"), "source ip is invalid"),
    ],
)
def test_a_malformed_rule_is_refused_with_a_reason(wrong: EntryInfo, reason: str) -> None:
    with pytest.raises(NoPermission, match=reason):
        parse_entry(wrong)


def test_words_are_compared_without_regard_to_case() -> None:
    rule = parse_entry(entry("TOPIC:T", "pub,SUB", "deny"))
    assert str(rule) == "Deny Pub,Sub on Topic:T"


@pytest.mark.parametrize(
    ("networks", "host", "expected"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::/32", "2001:db8::1%eth0", True),
        ("::/96", "10.1.2.3", False),
        ("10.0.0.0/8", "", False),
        ("10.0.0.0/8", "localhost", False),
    ],
)
def test_sources_are_networks(networks: str, host: str, expected: bool) -> None:
    rule = parse_entry(entry("*", "All", ips=networks))
    assert rule.matches(Kind.TOPIC, "T", (Action.PUB,), parse_source(host)) is expected


def test_a_rule_without_sources_holds_everywhere() -> None:
    assert parse_entry(entry("*", "All")).matches(Kind.TOPIC, "T", (Action.PUB,), None)


def test_one_of_the_actions_is_enough() -> None:
    rule = parse_entry(entry("Topic:T", "Sub"))
    assert rule.matches(Kind.TOPIC, "T", (Action.SUB, Action.GET), None)
    assert not rule.matches(Kind.TOPIC, "T", (Action.PUB,), None)


def test_rules_are_in_the_order_in_which_they_decide() -> None:
    info = AclInfo(policies=[PolicyInfo(entries=[
        entry("*"), entry("Topic:*"), entry("Topic:a*"), entry("Topic:ab*"), entry("Topic:abc"),
        entry("Topic:abc", "Sub", "Deny"),
    ])])  # fmt: skip
    rules = parse_policies(info)[PolicyType.CUSTOM]
    expected = ["Topic:abc", "Topic:abc", "Topic:ab*", "Topic:a*", "Topic:*", "*"]
    assert [str(rule.resource) for rule in rules] == expected
    assert str(rules[0]).startswith("Deny")


def test_new_rules_replace_those_for_the_same_resource() -> None:
    before = parse_policies(AclInfo(policies=[PolicyInfo(entries=[entry("*"), entry("Topic:T")])]))
    more = parse_policies(AclInfo(policies=[PolicyInfo(entries=[entry("Topic:T", "Sub")])]))
    merged = merge(before, more)
    texts = [str(rule) for rule in merged[PolicyType.CUSTOM]]
    assert texts == ["Allow Sub on Topic:T", "Allow Pub on *"]
    left = without(merged, PolicyType.CUSTOM, parse_resource("*"))
    assert [str(rule) for rule in left[PolicyType.CUSTOM]] == texts[:1]
    assert without(left, PolicyType.CUSTOM, parse_resource("Topic:T")) == {}


def test_a_user_has_a_bounded_number_of_rules() -> None:
    many = [entry(f"Topic:t{n}") for n in range(ENTRIES_MAX + 1)]
    with pytest.raises(NoPermission, match="at most"):
        parse_policies(AclInfo(policies=[PolicyInfo(entries=many)]))
    with pytest.raises(NoPermission, match="at most"):
        parse_sources([f"10.0.{n}.1" for n in range(256)] + ["10.1.0.1"])


@pytest.mark.parametrize("info", [AclInfo(), AclInfo(policies=[PolicyInfo(entries=[])])])
def test_rules_must_have_entries(info: AclInfo) -> None:
    with pytest.raises(NoPermission, match="entries is empty"):
        parse_policies(info)
    with pytest.raises(NoPermission, match="policy type"):
        parse_policies(AclInfo(policies=[PolicyInfo(policy_type="Odd")]))


names = st.text("abc", min_size=1, max_size=3)
resources = st.one_of(
    st.just("*"),
    st.builds("{}:{}{}".format, st.sampled_from(["Topic", "Group", "Cluster"]), names,
              st.sampled_from(["", "*"])),
)  # fmt: skip
entries = st.builds(
    entry,
    resources,
    st.lists(st.sampled_from([each.value for each in Action]), min_size=1).map(",".join),
    st.sampled_from(["Allow", "Deny"]),
    st.sampled_from(["", "10.0.0.0/8", "10.0.0.1,2001:db8::/32"]),
)


@given(st.lists(entries, min_size=1, max_size=5), st.sampled_from(["Custom", "Default"]))
def test_rules_read_back_as_they_are_shown(given_entries: list[EntryInfo], kind: str) -> None:
    info = AclInfo(policies=[PolicyInfo(policy_type=kind, entries=given_entries)])
    policies = parse_policies(info)
    assert parse_policies(acl_info("User:u", policies)) == policies
