"""Pull or pop: what was set holds, what was not follows the rules, nonsense changes nothing."""

from __future__ import annotations

import pytest

from rocketpost.broker.group import request_modes as request_mode
from rocketpost.broker.group.request_modes import ModeRules, RequestModes
from rocketpost.codec.bodies.assignment import RequestMode
from rocketpost.codec.faults import InvalidParameter, NoPermission, SystemBusy
from rocketpost.errors import StoreError


def mode(topic: str = "T", group: str = "g", mode: str = "POP", share: int = 0) -> RequestMode:
    return RequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share)


def test_a_mode_applies_to_its_topic_and_group_only() -> None:
    changed: list[str] = []
    modes = RequestModes(on_change=changed.append)
    modes.set(mode(share=3))
    assert modes.find("T", "g") == mode(share=3)
    assert modes.find("T", "h").mode == "PULL"
    assert modes.find("U", "g").mode == "PULL"
    modes.set(mode(share=3))
    assert changed == ["T"]
    assert modes.revision == 1


def test_the_default_mode_applies_where_none_is_set_except_in_retry_topics() -> None:
    modes = RequestModes()
    modes.rules = ModeRules("POP", 5)
    assert modes.find("T", "g") == mode(share=5)
    assert modes.find("%RETRY%g", "g").mode == "PULL"
    modes.set(mode(mode="PULL"))
    assert modes.find("T", "g").mode == "PULL"


@pytest.mark.parametrize("wanted", [mode(mode=""), mode(topic="a b"), mode(group="a@b")])
def test_an_invalid_mode_changes_nothing(wanted: RequestMode) -> None:
    modes = RequestModes()
    with pytest.raises(InvalidParameter):
        modes.set(wanted)
    assert modes.revision == 0


def test_retry_topics_are_always_pulled() -> None:
    with pytest.raises(NoPermission, match="always pulled"):
        RequestModes().set(mode(topic="%RETRY%g"))


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_mode, "MODES_MAX", 1)
    modes = RequestModes()
    modes.set(mode())
    modes.set(mode(share=1))
    with pytest.raises(SystemBusy):
        modes.set(mode(group="h"))


def test_the_file_is_read_back_without_its_invalid_entries() -> None:
    modes = RequestModes()
    modes.set(mode(share=2))
    again = RequestModes()
    again.load(modes.to_json())
    assert again.find("T", "g") == mode(share=2)
    assert again.body() == modes.body()
    other = RequestModes()
    other.load(
        b'{"messageRequestModeMap":{"T":{"g":{"topic":"T","consumerGroup":"g","mode":"X"}}}}'
    )
    assert other.find("T", "g").mode == "PULL"
    with pytest.raises(StoreError):
        other.load(b"[]")
