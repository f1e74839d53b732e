"""The survey: its bound on calls, turns of groups, and what it remembers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.client import ConnectionData, ConsumerConnections
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.codec.lenient_json import encode
from rocketpost.console.collect.collector import Collector
from rocketpost.console.collect.snapshot import BrokerView, GroupView, Snapshot, TopicView
from rocketpost.console.collect.survey import CALLS_MAX, Survey, list_owners, take_turns
from rocketpost.diagnosis.running_info import RunningInfo
from rocketpost.model.names import HALF_TOPIC
from rocketpost.model.route import MessageQueue

NOW = 10_000_000


class FakeAdmin:
    """Answers for groups with the given members, which may differ in their subscriptions."""

    def __init__(self, members: dict[str, list[str]], *, is_mixed: bool = False) -> None:
        self.members = members
        self.is_mixed = is_mixed
        self.asked: list[str] = []
        self.halves: list[int] = []
        self.groups = self
        self.transactions = self

    async def connections(self, group: str, address: str) -> ConsumerConnections:
        self.asked.append(group)
        clients = self.members.get(group, [])
        if not clients:
            raise ConsumerNotOnline("nobody")
        return ConsumerConnections(
            connection_set=[ConnectionData(client_id=each, client_addr="h:1") for each in clients]
        )

    async def running_info(self, address: str, group: str, client: str, *, stacks: bool) -> bytes:
        tags = client if self.is_mixed else "*"
        return encode({"subscriptionSet": [{"topic": "Orders", "subString": tags}]})

    async def pending(self) -> AsyncIterator[Any]:
        for born_ms in self.halves:
            yield SimpleNamespace(message=SimpleNamespace(born_ms=born_ms))


def make_survey(admin: FakeAdmin) -> tuple[Survey, Collector]:
    client: AdminClient = admin  # type: ignore[assignment]
    collector = Collector(client)
    return Survey(client, collector, now_ms=lambda: NOW), collector


def make_snapshot(groups: dict[str, int], *topics: str) -> Snapshot:
    return Snapshot(
        at_ms=NOW,
        brokers=[BrokerView(cluster="c", name="b", broker_id=0, address="h:1")],
        groups={name: GroupView(name=name, lag=lag, brokers=["b"]) for name, lag in groups.items()},
        topics={name: TopicView(name=name, kind="normal") for name in topics},
    )


async def test_groups_with_a_backlog_come_first_and_others_take_turns() -> None:
    admin = FakeAdmin({})
    survey, _ = make_survey(admin)
    snapshot = make_snapshot({f"g{number:03d}": 0 for number in range(150)} | {"late": 5})
    await survey.look(snapshot)
    assert (admin.asked[0], survey.calls) == ("late", CALLS_MAX)
    for _ in range(2):
        await survey.look(snapshot)
    assert set(admin.asked) == set(snapshot.groups)
    assert admin.asked.count("late") == 3


async def test_a_group_that_nobody_serves_is_offline() -> None:
    survey, collector = make_survey(FakeAdmin({"fine": ["a"]}))
    collector.snapshot = make_snapshot({"late": 5, "fine": 0, "idle": 0})
    await survey.look(collector.snapshot)
    states = {name: each.state for name, each in collector.snapshot.groups.items()}
    assert states == {"late": "offline", "fine": "fine", "idle": "fine"}
    assert collector.snapshot.groups["fine"].members == 1


async def test_members_with_different_subscriptions_are_noticed() -> None:
    survey, collector = make_survey(FakeAdmin({"g": ["a", "b"]}, is_mixed=True))
    collector.snapshot = make_snapshot({"g": 0})
    await survey.look(collector.snapshot)
    assert collector.snapshot.groups["g"].state == "mixed"
    # A look that could not ask every member proves nothing.
    survey.note_reports("g", ["a", "b"], {"a": RunningInfo()})
    assert survey.members["g"].is_mixed
    survey.note_reports("g", [], {})
    assert not survey.members["g"].is_mixed


async def test_only_old_half_messages_count() -> None:
    admin = FakeAdmin({})
    survey, _ = make_survey(admin)
    admin.halves = [NOW - 90_000, NOW - 70_000, NOW - 1000]
    await survey.look(make_snapshot({}, HALF_TOPIC))
    assert survey.halves is not None
    assert (survey.halves.count, survey.halves.oldest_ms) == (2, NOW - 90_000)
    admin.halves = []
    await survey.look(make_snapshot({}, HALF_TOPIC))
    assert survey.halves is None


def test_a_queue_of_two_members_or_of_pop_has_no_owner() -> None:
    first, second = MessageQueue("b", 0, "Orders"), MessageQueue("b", 1, "Orders")
    retry = MessageQueue("b", 0, "%RETRY%g")
    pops = RunningInfo(properties={"PROP_CONSUME_TYPE": "CONSUME_POP"}, queues={first: {}})
    infos = {
        "a": RunningInfo(queues={first: {}, second: {}, retry: {}}),
        "b": RunningInfo(queues={second: {}}),
        "c": pops,
    }
    assert list_owners(infos) == {"Orders b/0": "a"}


def test_turns_go_on_after_the_last_one() -> None:
    assert take_turns(["a", "b", "c"], "b") == ["c", "a", "b"]
    assert take_turns(["a", "b"], "") == ["a", "b"]
    assert take_turns(["a", "b"], "z") == ["a", "b"]
