from __future__ import annotations

import logging

import pytest

from rocketpost.broker.group.membership import EXPIRY_MS, Client, JoinResult, Membership
from rocketpost.model.group import Subscription, parse_tags
from rocketpost.testing.clock import FakeClock


def client(connection: str, client_id: str = "") -> Client:
    return Client(connection, client_id or f"id-{connection}", "10.0.0.3:40000", "JAVA", 479)


def join(
    membership: Membership,
    who: Client,
    *topics: str | Subscription,
    group: str = "G",
    model: str = "CLUSTERING",
) -> JoinResult:
    subscriptions = [
        parse_tags(topic, "*", version=1) if isinstance(topic, str) else topic for topic in topics
    ]
    return membership.join_consumer(
        group,
        who,
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=subscriptions,
    )


def test_a_new_member_or_topic_is_a_change_but_a_repeated_heartbeat_is_not(
    clock: FakeClock,
) -> None:
    members = Membership(clock=clock)
    assert join(members, client("1"), "T").changed
    assert not join(members, client("1"), "T").changed
    assert join(members, client("2"), "T").changed
    assert join(members, client("1"), "T", "U").changed
    assert join(members, client("1"), "T").changed
    group = members.consumer_group("G")
    assert group is not None
    assert group.client_ids == ["id-1", "id-2"]
    assert list(group.subscriptions) == ["T"]


def test_a_client_that_reconnected_counts_once(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    join(members, client("old", "me"), "T")
    clock.advance(1)
    join(members, client("new", "me"), "T")
    group = members.consumer_group("G")
    assert group is not None
    assert group.client_ids == ["me"]
    found = members.consumer("G", "me")
    assert found is not None
    assert found.connection == "new"
    assert members.forget_connection("old") == ["G"]
    assert members.consumer_group("G") is not None


def test_another_client_on_a_known_connection_replaces_it(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    join(members, client("1", "a"), "T")
    assert join(members, client("1", "b"), "T").changed
    group = members.consumer_group("G")
    assert group is not None
    assert group.client_ids == ["b"]


def test_only_a_newer_subscription_replaces_and_does_so_silently(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    join(members, client("1"), parse_tags("T", "A", version=5))
    assert not join(members, client("1"), parse_tags("T", "B", version=6)).changed
    join(members, client("1"), parse_tags("T", "C", version=4))
    subscription = members.subscription("G", "T")
    assert subscription is not None
    assert subscription.sub_string == "B"
    assert members.subscription("G", "U") is None
    assert members.subscription("H", "T") is None
    assert members.subscribers("T") == ["G"]


def test_a_heartbeat_without_subscriptions_keeps_them(clock: FakeClock) -> None:
    members = Membership(clock=clock)

    def beat(fingerprint: int, topics: list[Subscription] | None) -> JoinResult:
        return members.join_consumer(
            "G",
            client("1"),
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=topics,
            fingerprint=fingerprint,
        )

    assert beat(7, None) == (True, True)
    assert beat(7, [parse_tags("T", "*", version=1)]) == (True, False)
    assert beat(7, None) == (False, False)
    assert beat(8, None) == (False, True)
    assert members.subscription("G", "T") is not None


def test_leaving_returns_the_groups_that_lost_a_member(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    join(members, client("1"), "T")
    join(members, client("2"), "T")
    members.join_producer("P", client("1"))
    assert members.leave("1", producer_group="P", consumer_group="G") == ["G"]
    assert members.leave("1", producer_group="P", consumer_group="G") == []
    assert members.leave("1", consumer_group="unknown") == []
    assert not members.producers
    assert members.forget_connection("1") == []
    assert members.forget_connection("2") == ["G"]
    assert not members.consumers


def test_a_lost_connection_leaves_all_its_groups(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    join(members, client("1"), "T", group="G")
    join(members, client("1"), "T", group="H")
    members.join_producer("P", client("1"))
    assert sorted(members.forget_connection("1")) == ["G", "H"]
    assert not members.producers


def test_silent_members_expire(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    join(members, client("1"), "T")
    members.join_producer("P", client("1"))
    members.join_producer("P", client("2"))
    clock.advance(EXPIRY_MS)
    assert members.expire() == ([], [])
    join(members, client("3"), "T")
    members.join_producer("P", client("2"))
    clock.advance(1)
    assert members.expire() == (["1"], ["G"])
    assert members.expire() == ([], [])
    assert list(members.producers["P"]) == ["2"]


def test_a_connection_that_is_active_for_another_group_stays(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    join(members, client("1"), "T", group="G")
    clock.advance(EXPIRY_MS + 1)
    join(members, client("1"), "T", group="H")
    assert members.expire() == ([], ["G"])


def test_producers_take_turns_and_are_found_by_id(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    assert members.next_producer("P") is None
    assert members.producer("id-1") is None
    members.join_producer("P", client("1"))
    members.join_producer("P", client("2"))
    turns = [members.next_producer("P") for _ in range(4)]
    assert [turn.connection for turn in turns if turn] in (
        ["1", "2", "1", "2"],
        ["2", "1", "2", "1"],
    )
    found = members.producer("id-2")
    assert found is not None
    assert found.connection == "2"
    assert members.consumer("G", "id-1") is None


def test_members_that_subscribe_differently_are_reported_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    members = Membership(clock=clock)
    join(members, client("1"), "T", parse_tags("U", "A", version=1))
    join(members, client("2"), "T", parse_tags("U", "B", version=1))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "client=id-1 only_here=U TAG A" in texts[0]
    assert "client=id-2 only_here=U TAG B" in texts[1]
    caplog.clear()
    join(members, client("1"), "T", parse_tags("U", "A", version=1))
    assert not caplog.records
    join(members, client("1"), "T", parse_tags("U", "B", version=2))
    assert ["agree again" in record.getMessage() for record in caplog.records] == [True]


def test_a_member_with_fewer_topics_is_reported(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    members = Membership(clock=clock)
    join(members, client("1"), "T", "U")
    join(members, client("2"), "T")
    assert any("only_here=nothing" in record.getMessage() for record in caplog.records)


def test_members_that_disagree_about_the_model_are_reported(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    members = Membership(clock=clock)
    join(members, client("1"), "T")
    join(members, client("2"), "T", model="BROADCASTING")
    assert "message_model=BROADCASTING before=CLUSTERING" in caplog.text
    group = members.consumer_group("G")
    assert group is not None
    assert group.is_broadcasting


def test_a_producer_is_found_by_the_id_it_has_now(clock: FakeClock) -> None:
    members = Membership(clock=clock)
    members.join_producer("P", client("1"))
    members.join_producer("Q", client("1"))
    renamed = client("1")._replace(client_id="id-new")
    members.join_producer("P", renamed)
    assert members.producer("id-1") is not None
    members.leave("1", producer_group="Q")
    assert members.producer("id-1") is None
    assert members.producer("id-new") == renamed
    clock.advance(1)
    newer = renamed._replace(connection="2")
    members.join_producer("P", newer)
    assert members.producer("id-new") == newer
    members.forget_connection("2")
    assert members.producer("id-new") == renamed
    members.forget_connection("1")
    assert members.producer("id-new") is None


def test_each_new_producer_is_reported_once(clock: FakeClock) -> None:
    members, heard = Membership(clock=clock), list[str]()
    members.on_producer = heard.append
    for connection in ("1", "1", "2"):
        members.join_producer("P", client(connection))
    members.forget_connection("1")
    members.join_producer("P", client("1"))
    assert heard == ["P", "P", "P"]
