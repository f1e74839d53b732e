"""Properties text and settings classes."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.errors import ConfigError
from rocketpost.settings import (
    adjustments,
    apply_changes,
    apply_clamps,
    build,
    format_properties,
    option,
    parse_properties,
    reject_unknown,
    to_properties,
)


class Mode(enum.Enum):
    FAST = enum.auto()
    SAFE = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some settings."""

    count: int = option("someCount", 3, mutable=True)
    on: bool = option("isOn", True)
    mode: Mode = option("mode", Mode.FAST)
    name: str = option("name", "x")
    words: str = option("words", "x", mutable=True)
    ratio: float = option("ratio", 0.5)
    path: str | None = option("path", None)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError("someCount must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamped:
    """Settings whose files may say more than counts."""

    percent: int = option("percent", 50, mutable=True, clamp=(10, 90))
    window: int = option("window", 5, clamp=(2, 9), below=9)

    def __post_init__(self) -> None:
        apply_clamps(self)


def test_a_file_may_exceed_a_clamp_and_gets_a_note() -> None:
    values = {"percent": " 7 ", "window": "1", "other": "3"}
    clamped = build(Clamped, values)
    assert clamped == Clamped(percent=10, window=9)
    assert adjustments(clamped, values) == [
        "percent=7, it must be 10 to 90: 10 is in force",
        "window=1, it must be 2 to 9: 9 is in force",
    ]
    assert build(Clamped, {"percent": "91"}).percent == 90
    assert adjustments(clamped, {"percent": "10"}) == []


def test_a_change_may_not_go_beyond_a_clamp() -> None:
    assert apply_changes(Clamped(), {"percent": "90"}).percent == 90
    with pytest.raises(ConfigError, match="percent=91 must be between 10 and 90"):
        apply_changes(Clamped(), {"percent": "91"})


def test_the_java_syntax_is_read() -> None:
    text = (
        "# c\n! c\n\n a = 1 \nb: two\\\n   three\nc d\ne\\ f=\\u00e9\\t\\:\ng=\\uD83D\\uDE00\nh\n"
    )
    assert parse_properties(text) == {
        "a": "1 ",
        "b": "twothree",
        "c": "d",
        "e f": "é\t:",
        "g": "😀",
        "h": "",
    }
    assert parse_properties("a=1\r\na=2\rb=x\\") == {"a": "2", "b": "x"}
    assert parse_properties("k=a\\\\\nj=2") == {"k": "a\\", "j": "2"}


def test_a_bad_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="bad escape"):
        parse_properties("a=\\u12G4")


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    )
)
def test_written_properties_are_read_back(values: dict[str, str]) -> None:
    assert parse_properties(format_properties(values)) == values


def test_values_fill_the_class() -> None:
    values = {"someCount": "7", "isOn": "FALSE", "mode": "safe", "ratio": "2", "path": "", "z": "1"}
    sample = build(Sample, values)
    assert sample == Sample(count=7, on=False, mode=Mode.SAFE, ratio=2.0)
    assert build(Sample, {"path": "p"}).path == "p"
    assert to_properties(sample) == {
        "someCount": "7",
        "isOn": "false",
        "mode": "SAFE",
        "name": "x",
        "words": "x",
        "ratio": "2.0",
        "path": "",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [("someCount", "x"), ("isOn", "1"), ("mode", "slow"), ("ratio", "y"), ("someCount", "-1")],
)
def test_a_bad_value_names_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build(Sample, {key: value})


def test_unknown_keys_are_named() -> None:
    with pytest.raises(ConfigError, match="alpha, beta"):
        reject_unknown(["beta", "alpha", "name"], ["name"], [])
    reject_unknown(["name"], ["name"])
    with pytest.raises(ConfigError, match="flushDisktype \\(did you mean flushDiskType\\?\\)"):
        reject_unknown(["flushDisktype"], ["flushDiskType", "listenPort"])


def test_only_mutable_keys_change() -> None:
    assert apply_changes(Sample(), {"someCount": "9"}).count == 9
    with pytest.raises(ConfigError, match="name cannot be changed at run time"):
        apply_changes(Sample(), {"name": "y"})
    with pytest.raises(ConfigError, match="nope is not a known"):
        apply_changes(Sample(), {"nope": "y"})
    with pytest.raises(ConfigError, match="negative"):
        apply_changes(Sample(), {"someCount": "-2"})
    with pytest.raises(ConfigError, match="words needs a value, such as words=x"):
        apply_changes(Sample(), {"words": " "})
