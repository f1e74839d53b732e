"""Alarms of the overview, the worst first."""

from __future__ import annotations

from rocketpost.client.admin import AdminClient
from rocketpost.console.collect.collector import Collector
from rocketpost.console.collect.snapshot import BrokerView, GroupView, Snapshot
from rocketpost.console.collect.survey import DeadAnswer, OldHalves, Survey
from rocketpost.console.views.overview import Alarm, find_alarms, find_survey_alarms, summarize

NOW = 10_000_000


def broker(name: str, **more: object) -> BrokerView:
    return BrokerView(cluster="c", name=name, broker_id=0, address=f"{name}:1", **more)  # type: ignore[arg-type]


def pairs(alarms: list[Alarm]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.subject, each.detail) for each in alarms]


def test_brokers_are_silent_unreachable_full_or_late() -> None:
    snapshot = Snapshot(
        at_ms=NOW,
        brokers=[
            broker("a", problem="no answer within 4 s"),
            broker("b", problem="refused", is_reached=False),
            broker("c", disk_ratio=0.8),
            broker("d", runtime={"timerReadBehind": "61"}),
            broker("e", runtime={"timerReadBehind": "60"}, disk_ratio=0.5),
        ],
    )
    assert pairs(find_alarms(snapshot)) == [
        ("silent", "a", "no answer within 4 s"),
        ("unreachable", "b", "b:1: refused"),
        ("disk", "c", "80%"),
        ("timer", "d", "61 s"),
    ]


def test_brokers_tell_why_they_do_not_work() -> None:
    snapshot = Snapshot(
        at_ms=NOW,
        brokers=[
            broker("a", runtime={"notReadyReason": "the disk is full", "damagedRanges": "2"}),
            broker("b", runtime={"segmentsKeptReason": "group g holds them"}),
            broker("c", runtime={"followProblem": "heartbeats only"}),
            broker("d", runtime={"notReadyReason": "", "damagedRanges": "0", "followProblem": ""}),
        ],
    )
    assert pairs(find_alarms(snapshot)) == [
        ("unready", "a", "the disk is full"),
        ("damaged", "a", "2"),
        ("kept", "b", "group g holds them"),
        ("follower", "c", "heartbeats only"),
    ]


def test_groups_are_offline_still_mixed_or_late() -> None:
    groups = [
        GroupView(name="away", lag=5, members=0, delay_ms=90_000),
        GroupView(name="stuck", lag=5, still_queues=1, still_reason="busy"),
        GroupView(name="picky", lag=0, is_mixed=True),
        GroupView(name="slow", lag=5, delay_ms=61_000, members=2),
        GroupView(name="idle", lag=0, members=0),
        GroupView(name="fine", lag=5, delay_ms=500, members=1),
    ]
    snapshot = Snapshot(at_ms=NOW, groups={each.name: each for each in groups})
    assert pairs(find_alarms(snapshot)) == [
        ("offline", "away", ""),
        ("still", "stuck", "busy"),
        ("mixed", "picky", ""),
        ("late", "slow", ""),
    ]
    assert [each.name for each in summarize(snapshot).by_delay] == ["away", "slow", "fine"]


def test_nothing_is_counted_while_name_servers_are_silent() -> None:
    found = summarize(Snapshot(at_ms=NOW, problem="no name server answers"))
    counts = (found.lag, found.topics, found.groups, found.producers, found.in_tps)
    assert counts == (None,) * 5


def test_a_lag_is_a_sum_only_if_all_are_known() -> None:
    groups = {"a": GroupView(name="a", lag=3), "b": GroupView(name="b", lag=0)}
    assert summarize(Snapshot(at_ms=NOW, groups=groups)).lag == 3
    groups["c"] = GroupView(name="c", lag=None)
    assert summarize(Snapshot(at_ms=NOW, groups=groups)).lag is None


def test_a_survey_tells_of_dead_letters_halves_and_flapping_queues() -> None:
    admin: AdminClient = object()  # type: ignore[assignment]
    survey = Survey(admin, Collector(admin), now_ms=lambda: NOW)
    survey.halves = OldHalves(count=3, oldest_ms=NOW - 120_000, is_cut=True)
    survey.dead = {
        "few": DeadAnswer(at_ms=NOW, count=2),
        "none": DeadAnswer(at_ms=NOW, count=0),
        "many": DeadAnswer(at_ms=NOW, count=1200),
    }
    for number in range(6):
        survey.holdings.note("moving", NOW - number, ["a", "b"], {"q": "ab"[number % 2]})

    def text(key: str, **values: object) -> str:
        return " ".join([key, *map(str, values.values())])

    assert pairs(find_survey_alarms(survey, text, now_ms=NOW)) == [
        ("halves", "timers.title", "alarm.halves_detail 3+ 2 m"),
        ("dead", "many", "1,200"),
        ("dead", "few", "2"),
        ("flapping", "moving", "q"),
    ]
