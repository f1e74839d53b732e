"""Schemas in Spark's words, read without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import type_text
from rocketpost.spark.bodies.ddl import parse_fields

plain = st.sampled_from(
    [
        BooleanType(),
        IntegerType(),
        LongType(),
        DoubleType(),
        DecimalType(10, 2),
        DecimalType(38, 38),
        StringType(),
        BinaryType(),
        DateType(),
        TimestampType(),
        TimestampNTZType(),
    ]
)


def structs(kinds: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
    fields = st.dictionaries(names, kinds, min_size=1, max_size=4)
    return fields.map(lambda some: StructType([StructField(*each) for each in some.items()]))


nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        inner.map(ArrayType), inner.map(lambda kind: MapType(StringType(), kind)), structs(inner)
    ),
    max_leaves=8,
)


@given(structs(nested))
def test_written_schemas_are_read_back(kind: StructType) -> None:
    assert parse_fields(type_text(kind)) == kind


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a int", "struct<`a`: int>"),
        (" a  INTEGER,b:Long ", "struct<`a`: int, `b`: bigint>"),
        ("STRUCT<a real>", "struct<`a`: float>"),
        ("a dec, b numeric(5), c decimal(5, 1)", None),
        ("`a b` array<struct<x:int,y:map<string, array<date>>>>", None),
        ("a string COMMENT 'it''s', b int", None),
        ("1st string, _ timestamp_ltz", "struct<`1st`: string, `_`: timestamp>"),
    ],
)
def test_schemas_that_spark_accepts_are_accepted(text: str, words: str | None) -> None:
    found = type_text(parse_fields(text))
    assert words is None or found == words


def test_not_null_is_noted() -> None:
    assert [field.nullable for field in parse_fields("a int NOT NULL, b int")] == [False, True]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a wat",
            r"bodySchema='a wat' is not a schema: at character 3: wat is not a type; the types are",
        ),
        ("a", "at character 2: the end is not a type"),
        ("a int b", "at character 7: b is one word too many"),
        ("a int,", "at character 7: expected a name, not the end"),
        ("a array<int", "expected >, not the end"),
        ("a array int", "at character 9: expected <, not int"),
        ("a map<string>", "expected ,, not >"),
        ("a decimal(x)", "expected a number, not x"),
        ("a decimal(40)", r"decimal\(40, 0\) is invalid"),
        ("a int; b int", "at character 6: ; cannot be part of a schema"),
        ("a int not", "expected null"),
        ("a " + "array<" * 100, "nested more than 64 deep"),
        ("struct<a int> b", "b is one word too many"),
        ("<", "expected a name, not <"),
    ],
)
def test_invalid_schemas_are_refused_with_the_position(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_fields(text)
