"""A user's schema is a projection."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.spark.records import columns


def test_columns_are_found_whatever_their_case_and_keep_the_users_name() -> None:
    found = columns.select_columns([("QUEUEID", "int"), ("body", "binary")])
    assert [each.name for each in found] == ["QUEUEID", "body"]


def test_properties_may_be_text() -> None:
    assert columns.select_columns([("properties", "string")])[0].spark == "string"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("bodi", "binary", "did you mean body"),
        ("zzzzzz", "string", "the columns are topic"),
        ("queueId", "bigint", "queueId is int, not bigint"),
    ],
)
def test_unknown_columns_are_refused(name: str, kind: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        columns.select_columns([(name, kind)])


def test_the_whole_schema_as_spark_ddl() -> None:
    first = columns.ALL[:3]
    assert columns.ddl(first) == "topic string NOT NULL, brokerName string, queueId int NOT NULL"
    without = columns.make_nullable(first)
    assert columns.ddl(without) == "topic string, brokerName string, queueId int"


def test_columns_that_may_be_null() -> None:
    for how in ("map", "string", "none"):
        found = [each.name for each in columns.all_columns(how) if each.nullable]
        assert found == ["brokerName", "uniqKey", "keys", "tags"]
