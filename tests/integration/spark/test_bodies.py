"""Bodies by schema, in tables, streams and store directories."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import pytest
from google.protobuf import type_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from .conftest import Topics

pytestmark = pytest.mark.slow

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "lines", "type": {"type": "map", "values": "int"}},
    ],
}


def avro(customer: str, amount: float | None) -> bytes:
    out = io.BytesIO()
    value = {"customer": customer, "amount": amount, "lines": {"a": 1}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
    return out.getvalue()


def test_json_in_a_table_and_by_a_user_schema(topics: Topics) -> None:
    bodies = [{"customer": "a", "amount": 1, "at": "2026-11-16T08:00:00Z"}, {"customer": "b"}]
    topics.send("JsonRows", [json.dumps(each).encode() for each in bodies])
    schema = "customer string, amount double, at timestamp"
    frame = topics.read("JsonRows", bodyFormat="json", bodySchema=schema)
    rows = frame.selectExpr("body.customer", "body.amount", "unix_millis(body.at)").collect()
    assert sorted(map(tuple, rows)) == [("a", 1.0, 1_794_816_000_000), ("b", None, None)]
    reader = topics.spark.read.format("rocketmq").option("bodyFormat", "json")
    reader = reader.schema("body struct<amount: double>, queueOffset bigint")
    frame = reader.options(nameServer=topics.cluster.addresses, topic="JsonRows").load()
    assert frame.agg({"body.amount": "sum"}).collect()[0][0] == 1.0


def test_a_body_that_does_not_match_its_schema_is_an_error_or_kept(topics: Topics) -> None:
    topics.send("JsonErrors", [b'{"n": 1}', b"\x00 no json"])
    options = {"bodyFormat": "json", "bodySchema": "n bigint"}
    with pytest.raises(PySparkException, match="of JsonErrors does not match its schema"):
        topics.read("JsonErrors", **options).collect()
    frame = topics.read("JsonErrors", bodyErrors="keep", **options)
    rows = frame.select("body.n", "corruptBody").collect()
    assert {(row.n, row.corruptBody and bytes(row.corruptBody)) for row in rows} == {
        (1, None),
        (None, b"\x00 no json"),
    }


def test_avro_in_a_stream_and_in_a_store(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topics.send("AvroRows", [avro("a", 2.5), avro("b", None)])
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(AVRO))
    options = {"bodyFormat": "avro", "bodySchemaFile": str(file)}
    stream = topics.stream("AvroRows", startingOffsets="earliest", **options)
    topics.drain(stream.select("body.*"), tmp_path)
    expected = [("a", 2.5, {"a": 1}), ("b", None, {"a": 1})]
    written = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(map(tuple, written.collect())) == expected
    reader = spark.read.format("rocketmq-log").options(topic="AvroRows", **options)
    log = reader.load(str(topics.cluster.broker_directory() / "store"))
    assert sorted(map(tuple, log.select("body.*").collect())) == expected


def test_protobuf_in_a_table(topics: Topics, tmp_path: Path) -> None:
    # A message of Google's own, so that nothing has to be compiled here.
    every = FileDescriptorSet()
    for name in ("any_pb2", "source_context_pb2", "type_pb2"):
        module = __import__(f"google.protobuf.{name}", fromlist=[name])
        module.DESCRIPTOR.CopyToProto(every.file.add())
    file = tmp_path / "types.pb"
    file.write_bytes(every.SerializeToString())
    value = type_pb2.EnumValue(name="PAID", number=7)
    kind = type_pb2.Enum(name="State", syntax="SYNTAX_PROTO3", enumvalue=[value])
    topics.send("ProtobufRows", [kind.SerializeToString()])
    frame = topics.read(
        "ProtobufRows",
        bodyFormat="protobuf",
        bodySchemaFile=file,
        bodyMessage="google.protobuf.Enum",
    )
    words = "body.name", "body.syntax", "body.enumvalue[0].number", "body.source_context"
    assert tuple(frame.selectExpr(*words).collect()[0]) == ("State", "SYNTAX_PROTO3", 7, None)


def test_a_frame_is_written_by_a_schema_and_read_back(topics: Topics, tmp_path: Path) -> None:
    topics.send("WrittenRows", [b"first"], tags="first")
    frame = topics.spark.range(3).selectExpr(
        "concat('c', id) AS customer",
        "IF(id = 1, NULL, id / 4) AS amount",
        "map('n', CAST(id AS int)) AS lines",
        "'written' AS tags",
    )
    formats = {"json": {}, "avro": {"bodySchema": json.dumps(AVRO)}}
    for name, schema in formats.items():
        rows = frame.withColumn("tags", f.lit(name))
        writer = rows.write.format("rocketmq").mode("append").option("bodyFormat", name)
        writer.options(nameServer=topics.cluster.addresses, topic="WrittenRows", **schema).save()
    formats["json"] = {"bodySchema": "customer string, amount double, lines map<string,int>"}
    for name, schema in formats.items():
        found = topics.read("WrittenRows", bodyFormat=name, subExpression=name, **schema)
        assert sorted(map(tuple, found.select("body.*").collect())) == [
            ("c0", 0.0, {"n": 0}),
            ("c1", None, {"n": 1}),
            ("c2", 0.5, {"n": 2}),
        ]


def test_errors_name_the_column_or_row_that_cannot_be_written(topics: Topics) -> None:
    topics.send("UnwrittenRows", [b"first"])
    base = {"nameServer": topics.cluster.addresses, "topic": "UnwrittenRows"}

    def write(frame: DataFrame) -> None:
        writer = frame.write.format("rocketmq").mode("append").options(**base)
        writer.options(bodyFormat="avro", bodySchema=json.dumps(AVRO)).save()

    frame = topics.spark.range(2).selectExpr("id AS customer", "map('n', 1) AS lines")
    with pytest.raises(PySparkException, match="the column customer is bigint, but its schema"):
        write(frame)
    nulls = frame.selectExpr("IF(customer = 1, NULL, 'c') AS customer", "lines").coalesce(1)
    with pytest.raises(PySparkException, match=r"row 1 of the task .* customer is null"):
        write(nulls)
    assert topics.read("UnwrittenRows").count() == 1
