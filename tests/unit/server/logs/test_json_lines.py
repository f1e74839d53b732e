from __future__ import annotations

import json
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.server.logs.json_lines import VALUE_LENGTH_MAX, JsonFormatter, split_template


def line(message: object, *args: object, server: str = "", exc_info: object = None) -> dict:  # type: ignore[type-arg]
    record = logging.LogRecord(
        "rocketpost.x",
        logging.WARNING,
        "file",
        1,
        message,
        args,
        exc_info,  # type: ignore[arg-type]
    )
    record.created = 1_700_000_000.25
    text = JsonFormatter(server=server).format(record)
    assert "\n" not in text
    found: dict[str, object] = json.loads(text)
    return found


def test_event_and_values_are_fields() -> None:
    found = line("broker gone: name=%s count=%s", "broker-a", 3, server="s")
    del found["pid"]
    assert found == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "rocketpost.x",
        "server": "s",
        "event": "broker gone",
        "name": "broker-a",
        "count": 3,
    }


def test_another_form_is_one_event() -> None:
    assert line("lines left out: count=%s seconds=%.0f", 3, 2.5)["event"].startswith("lines left")
    assert line("%d things", 3)["event"] == "3 things"
    assert line("nothing to fill in: a=b")["event"] == "nothing to fill in: a=b"
    assert split_template("peer=%s") is None


def test_a_value_cannot_replace_a_field_of_the_line() -> None:
    found = line("request refused: level=%s logger=%s", "DEBUG", "x")
    assert (found["level"], found["level_"], found["logger_"]) == ("WARNING", "DEBUG", "x")


def test_a_long_value_is_cut() -> None:
    value = line("bad name: name=%s", "x" * 50_000)["name"]
    assert len(value) < VALUE_LENGTH_MAX + 40
    assert value.endswith("(50000 characters)")


def test_a_traceback_is_one_string() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        found = line("failed: what=%s", "it", exc_info=sys.exc_info())
    assert found["exc"].endswith("ValueError: first\nsecond")


@given(st.text())
def test_any_text_of_a_peer_is_one_valid_line(text: str) -> None:
    assert line("peer says: text=%s", text)["event"] == "peer says"


def test_lone_surrogates_do_not_lose_the_line() -> None:
    assert line("peer says: text=%s", "a\ud800b")["text"] == "a\\ud800b"
