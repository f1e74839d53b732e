"""Nothing is called missing while a server that may have it does not answer."""

from __future__ import annotations

import pytest

from rocketpost.console.collect.snapshot import (
    EMPTY,
    BrokerView,
    GroupView,
    Snapshot,
    TopicView,
)
from rocketpost.console.lookup import (
    find_group,
    find_master,
    find_servers,
    find_topic,
    masters,
)
from rocketpost.console.visit import NotFoundError
from rocketpost.errors import RocketpostError

FINDERS = (find_topic, find_group, find_servers, find_master)


def broker(name: str, broker_id: int = 0, problem: str | None = None) -> BrokerView:
    return BrokerView(
        cluster="c", name=name, broker_id=broker_id, address=f"{name}:1", problem=problem
    )


def test_what_a_snapshot_has_is_found() -> None:
    topic, group = TopicView(name="Orders", kind="normal"), GroupView(name="billing")
    a, b = broker("a"), broker("a", 1)
    snapshot = Snapshot(
        at_ms=1, topics={"Orders": topic}, groups={"billing": group}, brokers=[a, b]
    )
    assert find_topic(snapshot, "Orders") is topic
    assert find_group(snapshot, "billing") is group
    assert find_servers(snapshot, "a") == [a, b]
    assert find_master(snapshot, "a") is a
    assert masters(snapshot) == [a]


@pytest.mark.parametrize("find", FINDERS)
def test_a_name_that_no_server_has_is_missing(find: object) -> None:
    with pytest.raises(NotFoundError, match="Orders"):
        find(Snapshot(at_ms=1, brokers=[broker("a")]), "Orders")  # type: ignore[operator]


@pytest.mark.parametrize("find", FINDERS)
@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (EMPTY, "not answered yet"),
        (Snapshot(at_ms=1, problem="ns:9876 is down"), "ns:9876 is down"),
    ],
)
def test_nothing_is_missing_while_name_servers_are_silent(
    find: object, snapshot: Snapshot, reason: str
) -> None:
    with pytest.raises(RocketpostError, match=reason):
        find(snapshot, "Orders")  # type: ignore[operator]


def test_topics_and_groups_may_be_on_a_broker_that_is_silent() -> None:
    snapshot = Snapshot(at_ms=1, brokers=[broker("a"), broker("b", problem="no answer")])
    for find in (find_topic, find_group):
        with pytest.raises(RocketpostError, match="has Orders; these do not answer: b"):
            find(snapshot, "Orders")
    with pytest.raises(NotFoundError):
        find_servers(snapshot, "c")
