"""A set of features is driven as one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.server.feature import Feature, FeatureSet
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.dispatch.arrival import Arrival


class Recorder(Feature):
    """Notes what it is told."""

    def __init__(self, name: str, calls: list[str], *, needed: int | None = None) -> None:
        self._name = name
        self._calls = calls
        self._needed = needed

    @property
    def held(self) -> int:
        return 2

    def arrival_listeners(self) -> Sequence[ArrivalListener]:
        return (lambda messages: self._calls.append(f"{self._name} arrived"),)

    def offset_moved_back(self, topic: str, queue_id: int) -> None:
        self._calls.append(f"{self._name} back {topic} {queue_id}")

    def oldest_needed_position(self) -> Position | None:
        return None if self._needed is None else Position(self._needed)

    def runtime_values(self) -> dict[str, str]:
        return {self._name: "1"}

    async def save(self) -> None:
        self._calls.append(f"{self._name} saved")
        if self._name == "bad":
            raise StoreError("no room")


def a_set(*features: Feature) -> FeatureSet:
    made = FeatureSet()
    made.add(*features)
    return made


def test_events_reach_features_in_their_order() -> None:
    calls: list[str] = []
    features = a_set(Recorder("a", calls), Feature(), Recorder("b", calls))
    for listener in features.arrival_listeners():
        listener([])
    features.offset_reset("T", 1)
    assert calls == ["a arrived", "b arrived", "a back T 1", "b back T 1"]


def test_listeners_of_a_topic_hear_of_its_messages_only() -> None:
    heard: list[tuple[str, str]] = []

    class OfTopics(Feature):
        def __init__(self, name: str, *topics: str) -> None:
            self._name = name
            self._topics = topics

        def topic_listeners(self) -> Mapping[str, ArrivalListener]:
            return dict.fromkeys(self._topics, self._hear)

        def _hear(self, arrivals: list[Arrival]) -> None:
            heard.extend((self._name, arrival.topic) for arrival in arrivals)

    features = a_set(OfTopics("a", "S", "T"), OfTopics("b", "T"), OfTopics("c"))
    arrivals = [Arrival.of_one(topic, 0, 0, (0, 100, 0)) for topic in ("S", "Other", "T", "S")]
    for listener in features.arrival_listeners():
        listener(arrivals)
    assert heard == [("a", "S"), ("a", "T"), ("b", "T"), ("a", "S")]


def test_values_are_joined() -> None:
    calls: list[str] = []
    features = a_set(Recorder("a", calls, needed=70), Feature(), Recorder("b", calls, needed=50))
    assert features.held == 4
    assert features.runtime_values() == {"a": "1", "b": "1"}
    assert features.oldest_needed_position() == 50
    assert a_set(Feature()).oldest_needed_position() is None


async def test_all_are_saved_though_one_fails() -> None:
    calls: list[str] = []
    features = a_set(Recorder("a", calls), Recorder("bad", calls), Recorder("c", calls))
    with pytest.raises(StoreError, match="no room"):
        await features.save()
    assert calls == ["c saved", "bad saved", "a saved"]


async def test_features_are_abandoned_if_a_later_one_does_not_open() -> None:
    calls: list[str] = []

    class Opened(Feature):
        def __init__(self, name: str) -> None:
            self._name = name

        async def open(self) -> None:
            calls.append(f"{self._name} open")
            if self._name == "bad":
                raise StoreError("damaged")

        def abandon(self) -> None:
            calls.append(f"{self._name} abandoned")

    with pytest.raises(StoreError, match="damaged"):
        await a_set(Opened("a"), Opened("b"), Opened("bad"), Opened("d")).open()
    assert calls == ["a open", "b open", "bad open", "b abandoned", "a abandoned"]
    calls.clear()
    await a_set(Opened("a")).open()
    assert calls == ["a open"]


async def test_work_ends_when_one_fails() -> None:
    class Endless(Feature):
        async def run(self) -> None:
            await asyncio.Event().wait()

    class Failing(Feature):
        async def run(self) -> None:
            raise ValueError("a bug")

    with pytest.raises(ExceptionGroup) as failure:
        await a_set(Endless(), Failing()).run()
    assert failure.group_contains(ValueError, match="a bug")
