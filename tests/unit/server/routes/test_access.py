"""Access rules: the rights that requests need, found in headers and names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rocketpost.codec.command import Command
from rocketpost.codec.faults import InvalidParameter
from rocketpost.server.routes.access import (
    EVERY,
    GET,
    OWN,
    PUB,
    SUB,
    UPDATE,
    Need,
    ResourceKind,
    consumer_needs,
    of_cluster,
    of_group,
    of_message_id,
    of_named_cluster,
    of_topic,
    strict,
    topic_need,
)

TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER


def header(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("T", Need(TOPIC, "T", (PUB, GET))),
        ("%RETRY%G", Need(GROUP, "G", (SUB, GET))),
        ("%RETRY%G+T", Need(GROUP, "G", (SUB, GET))),
        ("%DLQ%G", Need(TOPIC, "%DLQ%G", (PUB, GET))),
        ("%RETRY%", Need(GROUP, EVERY, (SUB, GET))),
        ("", Need(TOPIC, EVERY, (PUB, GET))),
        (None, Need(TOPIC, EVERY, (PUB, GET))),
    ],
)
def test_a_topic_counts_as_itself_or_as_the_group_that_it_belongs_to(
    name: str | None, need: Need
) -> None:
    assert topic_need(name, (PUB, GET)) == need


def test_an_older_retry_topic_of_popping_needs_the_group_and_the_topic() -> None:
    of_group_g = Need(GROUP, "G", (SUB,))
    assert consumer_needs("%RETRY%G_T", "G", (SUB,)) == [Need(TOPIC, "T", (SUB,)), of_group_g]
    assert consumer_needs("%RETRY%H_T", "G", (SUB,)) == [Need(GROUP, "H_T", (SUB,)), of_group_g]
    assert consumer_needs("%RETRY%G_", "G", (SUB,)) == [Need(GROUP, "G_", (SUB,)), of_group_g]


def test_a_group_without_a_name_is_every_group_unless_it_is_optional() -> None:
    command = Command()
    assert of_group(SUB).needs(command, header(group="")) == [Need(GROUP, EVERY, (SUB,))]
    assert of_group(SUB, optional=True).needs(command, header(group="")) == []


def test_joined_rules_need_each_right_once() -> None:
    access = of_topic(SUB) + of_group(SUB) + of_cluster(UPDATE)
    found = access.needs(Command(), header(topic="%RETRY%G", group="G"))
    assert found == [Need(GROUP, "G", (SUB,)), Need(CLUSTER, OWN, (UPDATE,))]
    assert str(access) == "Topic(topic) Sub + Group(group) Sub + Cluster Update"


def test_a_strict_rule_stays_strict_when_it_is_joined() -> None:
    access = strict(of_topic(GET)) + of_group(GET)
    assert access.is_strict
    assert str(access) == "Topic(topic) Get + Group(group) Get (strict)"
    assert not of_topic(GET).is_strict


def test_a_cluster_that_is_not_named_is_every_cluster() -> None:
    access = of_named_cluster(UPDATE)
    assert access.needs(Command(), header(cluster_name="c")) == [Need(CLUSTER, "c", (UPDATE,))]
    assert access.needs(Command(), header(cluster_name=None)) == [Need(CLUSTER, EVERY, (UPDATE,))]


def test_a_message_id_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="msgId"):
        of_message_id(SUB).needs(Command(), header(msg_id="x"))
