from __future__ import annotations

from rocketpost.client.consumer.subscription_check import differences
from rocketpost.codec.bodies.client import ConsumerConnections, ConsumerData
from rocketpost.model.group import SQL92, Subscription, parse_tags


def ours(*subscriptions: Subscription) -> ConsumerData:
    return ConsumerData(group_name="G", subscription_data_set=list(subscriptions))


def theirs(*subscriptions: Subscription, model: str = "CLUSTERING") -> ConsumerConnections:
    table = {each.topic: each for each in subscriptions}
    return ConsumerConnections(subscription_table=table, message_model=model)


def test_the_same_tags_in_another_order_are_no_difference() -> None:
    mine, other = parse_tags("T", "A || B", version=1), parse_tags("T", "B||A", version=2)
    assert differences(ours(mine), theirs(other)) == []


def test_other_tags_topics_filters_and_models_are() -> None:
    mine = parse_tags("T", "A", version=1)
    sql = Subscription(topic="T", sub_string="a > 1", expression_type=SQL92)
    assert differences(ours(mine), theirs(parse_tags("T", "*", version=1))) == [
        "this member subscribes to TAG A of T, another member to TAG *"
    ]
    assert differences(ours(mine), theirs(sql)) == [
        "this member subscribes to TAG A of T, another member to SQL92 a > 1"
    ]
    assert differences(ours(mine), theirs()) == [
        "this member subscribes to TAG A of T, another member to nothing"
    ]
    assert differences(ours(), theirs(mine, model="BROADCASTING")) == [
        "this member is CLUSTERING, another member is BROADCASTING",
        "this member subscribes to nothing of T, another member to TAG A",
    ]
