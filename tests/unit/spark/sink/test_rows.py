"""The message and the number of a row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rocketpost.errors import MessageRefused
from rocketpost.spark.options import parse_options
from rocketpost.spark.sink.options import COLUMNS, SinkOptions
from rocketpost.spark.sink.rows import Rows, _Row

BASE = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def test_a_row_that_is_no_message_is_named() -> None:
    rows = Rows(parse_options(SinkOptions, BASE), None)
    with pytest.raises(MessageRefused, match="row 1 of the task: its body is null"):
        list(rows.messages(pa.RecordBatch.from_pydict({"body": [b"a", None]})))


def test_rows_are_numbered_by_their_position_in_the_task() -> None:
    rows = Rows(parse_options(SinkOptions, BASE), "job/3")
    batch = pa.RecordBatch.from_pydict({"BODY": ["a", "b"], "tags": ["t", None]})
    made = [*rows.messages(batch), *rows.messages(batch)]
    assert [each.sequence for each in made] == [0, 1, 2, 3]
    assert {each.producer_id for each in made} == {"job/3"}
    assert made[0].message.body == b"a"


def test_rows_without_numbers_get_none() -> None:
    rows = Rows(parse_options(SinkOptions, BASE), None)
    [made] = rows.messages(pa.RecordBatch.from_pydict({"body": [b"a"]}))
    assert (made.producer_id, made.sequence) == (None, None)


def test_numbers_given_by_a_row_are_used() -> None:
    rows = Rows(parse_options(SinkOptions, BASE), "job/3")
    batch = pa.RecordBatch.from_pydict({"body": [b"a"], "producerId": ["p"], "sequence": [17]})
    [made] = rows.messages(batch)
    assert (made.producer_id, made.sequence) == ("p", 17)


def test_a_row_keeps_its_number_when_another_is_left_out() -> None:
    more = {"maxMessageBytes": "2", "onTooLarge": "skip"}
    rows = Rows(parse_options(SinkOptions, BASE | more), "job/0")
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"too large", b"b"]})
    assert [each.sequence for each in rows.messages(batch)] == [0, 2]
    assert rows.skipped == 1


def test_the_size_of_a_string_is_counted_in_bytes() -> None:
    more = {"maxMessageBytes": "3", "onTooLarge": "skip"}
    rows = Rows(parse_options(SinkOptions, BASE | more), "job/0")
    batch = pa.RecordBatch.from_pydict({"body": ["abc", "\u00e4\u00f6", "d"]})
    assert [each.sequence for each in rows.messages(batch)] == [0, 2]
    assert rows.skipped == 1


def test_rows_of_different_priority_do_not_share_a_request() -> None:
    rows = Rows(parse_options(SinkOptions, BASE), "job/0")
    levels = pa.array([7, 7, None], pa.int32())
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"b", b"c"], "priority": levels})
    first, second, third = rows.messages(batch)
    assert [each.message.priority for each in (first, second, third)] == [7, 7, None]
    assert second.follows(first)
    assert not third.follows(second)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"topic": ["T", None]}, "row 1 of the task: its topic is null or empty"),
        ({"topic": ["T", "a b"]}, "row 1 of the task: the topic 'a b' has characters"),
        ({"body": ["a", ""]}, "row 1 of the task: its body is empty, which brokers refuse"),
        ({"queueId": [0, None]}, "row 1 of the task: only one of its brokerName and queueId"),
        ({"delayLevel": [1, 19]}, "row 1 of the task: the delay level 19"),
        ({"keys": ["k", "k" * 40_000]}, "row 1 of the task: the properties take 400"),
        ({"tags": ["t", "t\2"]}, "row 1 of the task: 't.x02' has the character U.0002"),
    ],
)
def test_errors_name_the_wrong_value_of_a_row(columns: dict[str, Any], said: str) -> None:
    given = {"nameServer": "x:1"} if "topic" in columns else BASE
    whole = {"body": ["a", "b"]} | columns
    if "queueId" in columns:
        whole["brokerName"] = ["b", "b"]
    rows = Rows(parse_options(SinkOptions, given), None)
    with pytest.raises(MessageRefused, match=said):
        list(rows.messages(pa.RecordBatch.from_pydict(whole)))


def test_rows_know_the_columns_in_their_order() -> None:
    fields = [name.replace("_", "") for name in _Row._fields]
    assert fields == [name.lower() for name in COLUMNS]
