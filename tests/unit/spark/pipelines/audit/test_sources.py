"""Options that an audit refuses before it reads anything."""

from __future__ import annotations

from typing import Any

import pytest

from rocketpost.codec.faults import NoPermission
from rocketpost.errors import ConfigError
from rocketpost.spark.pipelines.audit.config import AuditConfig
from rocketpost.spark.pipelines.audit.sources import read_bounds
from rocketpost.spark.source.plan import Bounds, QueueKey

QUEUES = [QueueKey("Orders", "a", 0), QueueKey("Orders", "a", 1)]


class FakeLink:
    """Brokers with two queues, where a group without offsets is said to stand at 0 in one."""

    consumers: frozenset[str] = frozenset(("billing", "TOOLS_CONSUMER", "CID_RMQ_SYS_SPARK"))
    table: frozenset[str] | NoPermission = frozenset(("billing", "fresh"))

    def __init__(self, options: Any) -> None:
        self._group = options.group

    def __enter__(self) -> FakeLink:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queues(self) -> list[QueueKey]:
        return QUEUES

    def bounds(self, queues: list[QueueKey]) -> dict[QueueKey, Bounds]:
        return dict.fromkeys(queues, Bounds(0, 9))

    def group_offsets(self, queues: list[QueueKey]) -> dict[QueueKey, int | None]:
        at = (0, 5) if self._group in ("billing", "deleted") else (0, None)
        return dict(zip(queues, at, strict=True))

    def consuming_groups(self, topics: tuple[str, ...]) -> frozenset[str]:
        assert topics == ("Orders",)
        return self.consumers

    def known_groups(self, queues: list[QueueKey]) -> frozenset[str]:
        if isinstance(self.table, NoPermission):
            raise self.table
        return self.table


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> type[FakeLink]:
    class Brokers(FakeLink):
        pass

    monkeypatch.setattr("rocketpost.spark.pipelines.audit.sources.BrokerSession", Brokers)
    return Brokers


def config(group: str) -> AuditConfig:
    return AuditConfig(topics=("Orders",), name_servers="x:1", group=group)


def test_a_group_that_nobody_knows_is_refused_and_those_that_consume_are_named(
    brokers: type[FakeLink],
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_bounds(config("biling"))
    assert str(refused.value) == (
        "no broker knows the group biling; the groups that consume Orders are billing"
    )
    brokers.consumers = frozenset(("TOOLS_CONSUMER",))
    with pytest.raises(ConfigError, match="no group consumes Orders yet; leave out the group"):
        read_bounds(config("biling"))


@pytest.mark.parametrize("group", ["billing", "fresh", "deleted"])
def test_a_group_that_consumed_or_that_a_broker_knows_is_accepted(
    brokers: type[FakeLink], group: str
) -> None:
    have, committed = read_bounds(config(group))
    assert list(have) == list(committed) == QUEUES


def test_a_group_is_accepted_if_brokers_do_not_list_their_groups(brokers: type[FakeLink]) -> None:
    brokers.table = NoPermission("for administrators only")
    assert read_bounds(config("biling"))[1] == {QUEUES[0]: 0, QUEUES[1]: None}
