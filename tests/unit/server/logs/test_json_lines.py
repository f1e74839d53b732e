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


def fields(message: str, *args: object) -> dict[str, object]:
    found = line(message, *args)
    return {name: found[name] for name in found if name not in ("ts", "level", "logger", "pid")}


def test_values_in_other_forms_are_fields_too() -> None:
    assert fields("lines left out: count=%s seconds=%.0f", 3, 2.5) == {
        "event": "lines left out",
        "count": 3,
        "seconds": "2",
    }
    assert fields("port open: address=%s:%s tls=%s", "h", 1, False) == {
        "event": "port open",
        "address": "h:1",
        "tls": False,
    }
    assert fields("%s refused: peer=%s reason=it is late", "send", "h") == {
        "event": "send refused",
        "peer": "h",
        "reason": "it is late",
    }
    assert fields("%s is %d%% full: path=%s", "disk", 99, "/") == {
        "event": "disk is 99% full",
        "path": "/",
    }


def test_advice_and_a_last_value_without_a_name_are_fields() -> None:
    assert fields("few files: left=%s limit=%s; raise the limit (ulimit -n)", 3, 9) == {
        "event": "few files",
        "left": 3,
        "limit": 9,
        "hint": "raise the limit (ulimit -n)",
    }
    assert fields("topic created: topic=%s by=%s %s", "T", "h", "perm=6 order=false") == {
        "event": "topic created",
        "topic": "T",
        "by": "h",
        "detail": "perm=6 order=false",
    }


def test_another_form_is_one_event() -> None:
    assert fields("%d things", 3) == {"event": "3 things"}
    assert fields("nothing to fill in: a=b") == {"event": "nothing to fill in: a=b"}
    assert fields("100 % is no conversion: a=b") == {"event": "100 % is no conversion: a=b"}
    assert [part.name for part in split_template("peer=%s")] == ["event"]


def test_values_never_name_fields() -> None:
    assert fields("peer says: text=%s", "a=b level=DEBUG; c=d") == {
        "event": "peer says",
        "text": "a=b level=DEBUG; c=d",
    }


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
