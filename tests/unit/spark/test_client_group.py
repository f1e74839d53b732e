"""Clients on the shared loop thread are started and stopped together, whatever fails."""

from __future__ import annotations

import pytest

from rocketpost.spark.client_group import ClientGroup


class Client:
    def __init__(self, name: str, said: list[str], failing: str = "") -> None:
        self._name = name
        self._said = said
        self._failing = failing

    async def start(self) -> None:
        self._tell("start")

    async def stop(self) -> None:
        self._tell("stop")

    def _tell(self, what: str) -> None:
        self._said.append(f"{what} {self._name}")
        if what == self._failing:
            raise OSError(what)


def test_the_last_that_started_stops_first() -> None:
    said: list[str] = []
    with ClientGroup(Client("a", said), Client("b", said)):
        assert said == ["start a", "start b"]
    assert said[2:] == ["stop b", "stop a"]


def test_started_clients_are_stopped_when_another_fails_to_start() -> None:
    said: list[str] = []
    with (
        pytest.raises(OSError, match="start"),
        ClientGroup(Client("a", said), Client("b", said, failing="start")),
    ):
        pytest.fail("it was opened")
    assert said == ["start a", "start b", "stop a"]


def test_all_clients_are_stopped_although_one_fails_to_stop() -> None:
    said: list[str] = []
    with (
        pytest.raises(OSError, match="stop"),
        ClientGroup(Client("a", said), Client("b", said, failing="stop")),
    ):
        pass
    assert said[2:] == ["stop b", "stop a"]
    with ClientGroup(Client("c", said)):  # the thread was given back, and can be had again
        assert said[-1] == "start c"
