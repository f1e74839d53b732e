"""Protobuf bodies, as the messages of another library are written."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import UNREADABLE, nullable_field
from rocketpost.spark.bodies.protobuf import ProtobufCodec

from .rows import read

FIELDS = {
    "id": ("UINT64", ""),
    "count": ("UINT32", ""),
    "small": ("SINT32", ""),
    "ratio": ("DOUBLE", ""),
    "name": ("STRING", ""),
    "raw": ("BYTES", ""),
    "state": ("ENUM", ".shop.State"),
    "at": ("MESSAGE", ".google.protobuf.Timestamp"),
    "took": ("MESSAGE", ".google.protobuf.Duration"),
    "score": ("MESSAGE", ".google.protobuf.Int32Value"),
    "item": ("MESSAGE", ".shop.Item"),
    "more": ("MESSAGE", ".shop.Item"),
    "tags": ("STRING", ""),
    "stock": ("MESSAGE", ".shop.Order.StockEntry"),
    "maybe": ("INT32", ""),
}
REPEATED = {"more", "tags", "stock"}
WORDS = (
    "struct<`id`: decimal(20,0), `count`: bigint, `small`: int, `ratio`: double, `name`: string, "
    "`raw`: binary, `state`: string, `at`: timestamp, `took`: interval day to second, "
    "`score`: int, `item`: struct<`sku`: string, `n`: int>, "
    "`more`: array<struct<`sku`: string, `n`: int>>, `tags`: array<string>, "
    "`stock`: map<string, int>, `maybe`: int>"
)


def field(name: str, number: int, kind: str, of: str = "", *, many: bool = False) -> Any:
    made = FieldDescriptorProto(name=name, number=number, type=f"TYPE_{kind}")
    if of:
        made.type_name = of
    made.label = 3 if many else 1
    return made


def described() -> FileDescriptorSet:
    """Return what protoc would write for a small schema of proto 3."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    state = EnumDescriptorProto(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    item = DescriptorProto(name="Item")
    item.field.extend([field("sku", 1, "STRING"), field("n", 2, "INT32")])
    order = DescriptorProto(name="Order")
    for number, (name, (kind, of)) in enumerate(FIELDS.items(), 1):
        order.field.append(field(name, number, kind, of, many=name in REPEATED))
    order.oneof_decl.add(name="_maybe")
    order.field[-1].proto3_optional = True
    order.field[-1].oneof_index = 0
    entry = order.nested_type.add(name="StockEntry")
    entry.field.extend([field("key", 1, "STRING"), field("value", 2, "INT32")])
    entry.options.map_entry = True
    tree = DescriptorProto(name="Tree")
    tree.field.append(field("child", 1, "MESSAGE", ".shop.Tree"))
    file.enum_type.append(state)
    file.message_type.extend([item, order, tree, DescriptorProto(name="Empty")])
    every = FileDescriptorSet()
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2):
        known = every.file.add()
        module.DESCRIPTOR.CopyToProto(known)
        file.dependency.append(known.name)
    every.file.append(file)
    return every


SET = described().SerializeToString()


def codec(message: str = "shop.Order") -> ProtobufCodec:
    return ProtobufCodec(SET, message)


def kind() -> StructType:
    made = codec()._kind
    assert isinstance(made, StructType)
    return made


def order(**values: Any) -> Any:
    pool = DescriptorPool()
    for file in described().file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**values)


def test_every_kind_of_value() -> None:
    message = order(
        id=2**64 - 1,
        count=2**32 - 1,
        small=-3,
        ratio=0.5,
        name="é",
        raw=b"\xff",
        state=1,
        score={"value": 0},
        item={"sku": "a"},
        more=[{"sku": "b", "n": 2}],
        tags=["x", "y"],
        stock={"k": 4},
        maybe=0,
    )
    message.at.FromDatetime(datetime(2026, 11, 16, 8, 0, 0, 5, UTC))
    message.took.FromMilliseconds(1500)
    assert codec().words() == WORDS
    assert read(codec(), kind(), message.SerializeToString()) == {
        "id": Decimal(2**64 - 1),
        "count": 2**32 - 1,
        "small": -3,
        "ratio": 0.5,
        "name": "é",
        "raw": b"\xff",
        "state": "PAID",
        "at": datetime(2026, 11, 16, 8, 0, 0, 5, UTC),
        "took": timedelta(milliseconds=1500),
        "score": 0,
        "item": {"sku": "a", "n": 0},
        "more": [{"sku": "b", "n": 2}],
        "tags": ["x", "y"],
        "stock": {"k": 4},
        "maybe": 0,
    }


def test_unset_fields_are_null_if_that_is_known_or_else_the_default() -> None:
    found = read(codec(), kind(), b"")
    nulls = {name for name, value in found.items() if value is None}
    assert nulls == {"at", "took", "score", "item", "maybe"}
    assert (found["id"], found["name"], found["state"], found["tags"]) == (0, "", "NEW", [])


def test_a_number_that_no_enum_names_is_kept() -> None:
    assert read(codec(), kind(), order(state=9).SerializeToString())["state"] == "9"


def test_some_fields_can_be_asked_for() -> None:
    more = ArrayType(StructType([nullable_field("n", IntegerType())]))
    part = StructType([nullable_field("more", more), nullable_field("name", StringType())])
    body = order(name="x", more=[{"sku": "b", "n": 2}]).SerializeToString()
    assert read(codec(), part, body) == {"more": [{"n": 2}], "name": "x"}
    with pytest.raises(ConfigError, match="body has no field 'names'"):
        codec().check(StructType([nullable_field("names", StringType())]))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(UNREADABLE):
        read(codec(), kind(), body)


def test_a_truncated_body_and_an_absurd_time_are_refused() -> None:
    late = order()
    late.at.seconds = 2**50
    for body in (order(name="abc").SerializeToString()[:-1], late.SerializeToString()):
        with pytest.raises(UNREADABLE):
            read(codec(), kind(), body)


def test_schemas_that_are_not_understood() -> None:
    alone = FileDescriptorSet(file=described().file[-1:]).SerializeToString()
    for descriptors, message, said in (
        (b"", "shop.Order", "needs bodySchemaFile"),
        (SET, "", "needs bodySchemaFile"),
        (b"\xff\xff", "shop.Order", "not a descriptor set"),
        (SET, "shop.Orders", "has no message shop.Orders"),
        (SET, "shop.Tree", "body.child contains itself"),
        (SET, "shop.Empty", "which has no fields"),
        (alone, "shop.Order", "--include_imports"),
    ):
        with pytest.raises(ConfigError, match=said):
            ProtobufCodec(descriptors, message)
