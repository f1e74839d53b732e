from __future__ import annotations

from dataclasses import dataclass

import pytest

from rocketpost.codec.faults import InvalidParameter, NoPermission
from rocketpost.errors import ConfigError, StoreError
from rocketpost.server.settings.live_config import (
    LiveConfig,
    Override,
    apply_overrides,
    decode_overrides,
)
from rocketpost.settings import option
from rocketpost.testing.clock import FakeClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    hours: int = option("fileReservedTime", 72, mutable=True)
    path: str = option("storePathRootDir", "/data")

    def __post_init__(self) -> None:
        if self.hours <= 0:
            raise ConfigError("fileReservedTime must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    trace_on: bool = option("traceOn", True, mutable=True)


def make(**from_file: str) -> LiveConfig:
    return LiveConfig(Small(), Other(), clock=FakeClock(), from_file=from_file)


def test_a_change_reaches_those_who_watch_its_class() -> None:
    live = make()
    small: list[Small] = []
    other: list[Other] = []
    live.watch(Small, small.append)
    live.watch(Other, other.append)
    live.change({"fileReservedTime": "24"})
    assert (small, other) == ([Small(hours=24)], [])
    assert live.section(Small) is small[0]
    assert live.properties() == {
        "fileReservedTime": "24",
        "storePathRootDir": "/data",
        "traceOn": "true",
    }
    assert (live.version.counter, live.revision) == (1, 1)
    live.change({})
    assert live.revision == 1


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"traceOn": "false", "storePathRootDir": "/x"}, NoPermission),
        ({"traceOn": "false", "unknown": "1"}, NoPermission),
        ({"traceOn": "false", "fileReservedTime": "soon"}, InvalidParameter),
        ({"traceOn": "false", "fileReservedTime": "0"}, InvalidParameter),
    ],
)
def test_a_change_is_made_whole_or_not_at_all(
    values: dict[str, str], error: type[Exception]
) -> None:
    live = make()
    before = live.properties()
    with pytest.raises(error):
        live.change(values)
    assert live.properties() == before
    assert decode_overrides(live.to_json()) == {}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("storePathRootDir", "set it in its file, restart"),
        ("sendMessageThreadPoolNums", "has no effect here: there are no thread pools here"),
        ("useTLS", "cannot be changed while the broker runs: set tls.enable=true instead"),
        ("traceOm", r"did you mean traceOn\?"),
        ("a\nb", r"'a\\nb' cannot be changed .* no such setting"),
    ],
)
def test_a_refusal_says_what_to_do(key: str, text: str) -> None:
    with pytest.raises(NoPermission, match=text):
        make().change({key: "1"})


def test_a_change_survives_a_restart() -> None:
    from_file = {"fileReservedTime": "48", "brokerName": "b"}
    live = make(**from_file)
    live.change({"fileReservedTime": "24", "traceOn": "false"})
    overrides = decode_overrides(live.to_json())
    assert overrides == {
        "fileReservedTime": Override("24", "48"),
        "traceOn": Override("false", None),
    }
    values, kept = apply_overrides(from_file, overrides, [Small, Other], now_ms=0)
    assert values == {"fileReservedTime": "24", "brokerName": "b", "traceOn": "false"}
    assert kept == overrides


def test_the_newer_edit_wins() -> None:
    overrides = {"fileReservedTime": Override("24", "48"), "traceOn": Override("false", None)}
    edited = {"fileReservedTime": "96", "traceOn": "true"}
    assert apply_overrides(edited, overrides, [Small, Other], now_ms=0) == (edited, {})


def test_an_override_of_a_fixed_key_is_dropped() -> None:
    overrides = {"storePathRootDir": Override("/tmp/x"), "gone": Override("1")}
    assert apply_overrides({}, overrides, [Small, Other], now_ms=0) == ({}, {})


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a":1}', b"\xff"])
def test_a_file_that_holds_no_overrides_is_refused(text: bytes) -> None:
    with pytest.raises(StoreError, match="brokerOverrides"):
        decode_overrides(text)
