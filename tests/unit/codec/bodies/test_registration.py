"""Registrations: Java's text, the compressed form, and bodies that want to do harm."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies import registration as module
from rocketpost.codec.bodies.registration import (
    RegisteredTopics,
    RegistrationBody,
    body_crc,
    decode_data_version,
    decode_registration,
    encode_data_version,
    encode_registration,
)
from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.codec.codes import VERSION
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.topic import DataVersion, TopicConfig

TEXT = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
    b'"stateVersion":0,"timestamp":1700000000000},"mappingDataVersion":{"counter":0,'
    b'"stateVersion":0,"timestamp":1700000000000},"topicConfigTable":{"TopicA":{"attributes":{},'
    b'"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}},'
    b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)
WRAPPER_ALONE = TEXT[TEXT.index(b'"topicConfigSerializeWrapper":') + 30 : -1]

words = st.text("abcXYZ09_-%", min_size=1, max_size=8)
counts = st.integers(0, 65536)
configs = st.builds(
    TopicConfig,
    attributes=st.dictionaries(words, words, max_size=2),
    order=st.booleans(),
    perm=st.integers(0, 7),
    read_queue_nums=counts,
    topic_sys_flag=st.integers(0, 3),
    write_queue_nums=counts,
)
versions = st.builds(DataVersion, st.integers(0), st.integers(0, 9), st.integers(0, 2**62))
mappings = st.builds(
    QueueMapping,
    bname=words,
    curr_id_map=st.dictionaries(counts, counts, max_size=3),
    dirty=st.booleans(),
    epoch=counts,
    total_queues=counts,
)


@st.composite
def registrations(draw: st.DrawFn) -> RegistrationBody:
    topics = draw(st.dictionaries(words, configs, max_size=4))
    static = draw(st.dictionaries(words, mappings, max_size=2))
    return RegistrationBody(
        filter_server_list=draw(st.lists(words, max_size=2)),
        topic_config_serialize_wrapper=RegisteredTopics(
            data_version=draw(versions),
            mapping_data_version=draw(versions),
            topic_config_table={
                name: msgspec.structs.replace(config, topic_name=name)
                for name, config in topics.items()
            },
            topic_queue_mapping_info_map={
                name: msgspec.structs.replace(mapping, topic=name)
                for name, mapping in static.items()
            },
        ),
    )


def read(body: bytes, *, version: int = VERSION, compressed: bool = False) -> RegistrationBody:
    return decode_registration(body, version=version, compressed=compressed)


def sections(*parts: bytes | int) -> bytes:
    """A compressed body: integers as they are, bytes behind their length."""
    packed = [
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part
        for part in parts
    ]
    return zlib.compress(b"".join(packed))


def test_the_text_of_the_protocol() -> None:
    assert encode_registration(read(TEXT)) == TEXT
    assert read(TEXT).table.topic_config_table["TopicA"].read_queue_nums == 4


def test_the_crc_is_positive() -> None:
    assert zlib.crc32(b"b") > 0x7FFF_FFFF or body_crc(b"b") == zlib.crc32(b"b")
    assert body_crc(TEXT) == zlib.crc32(TEXT) & 0x7FFFFFFF


@given(registrations())
def test_every_registration_survives(sent: RegistrationBody) -> None:
    assert read(encode_registration(sent)) == sent


@given(registrations())
def test_every_registration_survives_compression(sent: RegistrationBody) -> None:
    got = read(encode_registration(sent, compressed=True), compressed=True)
    # This form has no room for the order mark, the system flag and the mappings' version.
    plain = {
        name: msgspec.structs.replace(config, order=False, topic_sys_flag=0)
        for name, config in sent.table.topic_config_table.items()
    }
    assert got.filter_server_list == sent.filter_server_list
    assert got.table.data_version == sent.table.data_version
    assert got.table.topic_config_table == plain
    assert got.table.topic_queue_mapping_info_map == sent.table.topic_queue_mapping_info_map


def test_the_compressed_text_of_a_topic() -> None:
    config = TopicConfig(
        topic_name="TopicA",
        read_queue_nums=4,
        write_queue_nums=5,
        attributes={"message.type": "DELAY"},
    )
    table = RegisteredTopics(topic_config_table={"TopicA": config})
    body = encode_registration(
        RegistrationBody(topic_config_serialize_wrapper=table), compressed=True
    )
    assert b'TopicA 4 5 6 SINGLE_TAG {"message.type":"DELAY"}' in zlib.decompress(body)


def test_a_compressed_body_of_a_4x_broker() -> None:
    body = sections(b'{"counter":3,"timestamp":7}', 1, b"TopicA 4 4 6 SINGLE_TAG", b"[]")
    got = read(body, version=401, compressed=True)
    assert got.table.data_version == DataVersion(3, 0, 7)
    assert got.table.topic_config_table["TopicA"].attributes == {}


def test_no_body_is_an_empty_table() -> None:
    assert read(b"") == RegistrationBody()
    assert read(b"", compressed=True) == RegistrationBody()


def test_brokers_before_filter_servers_send_the_table_alone() -> None:
    assert read(WRAPPER_ALONE, version=36).table == read(TEXT).table


def test_static_topics_with_bare_integer_keys() -> None:
    body = TEXT.replace(
        b'"topicQueueMappingInfoMap":{}',
        b'"topicQueueMappingInfoMap":{"S":{"bname":"b","currIdMap":{0:0,1:3},"dirty":false,'
        b'"epoch":1,"scope":"__global__","topic":"S","totalQueues":8}}',
    )
    assert read(body).table.topic_queue_mapping_info_map["S"].curr_id_map == {0: 0, 1: 3}
    assert encode_registration(read(body)) == body


def test_data_versions() -> None:
    version = DataVersion(1, 2, 3)
    assert encode_data_version(version) == b'{"counter":1,"stateVersion":2,"timestamp":3}'
    assert decode_data_version(encode_data_version(version)) == version


@pytest.mark.parametrize("body", [b"x", b"[]", b'{"topicConfigSerializeWrapper":5}'])
def test_invalid_registrations_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(body)


@pytest.mark.parametrize(
    "body",
    [
        b"not zlib",
        zlib.compress(b"x" * 100)[:-6],
        sections(),
        sections(b"{}"),
        sections(b"{}", -1),
        sections(b"{}", module.TOPICS_MAX + 1),
        sections(b"{}", 1, b"TopicA 4 4 6"),
        sections(b"{}", 1, b"TopicA four 4 6 SINGLE_TAG"),
        sections(b"{}", 1, b"TopicA 4 4 6 SINGLE_TAG [1"),
        sections(b"{}", 0, b"{}"),
        sections(b"{}", 0, b"[]"),
        zlib.compress(struct.pack(">i", 50) + b"{}"),
        zlib.compress(struct.pack(">i", 5) + b"{}" + bytes(2)),
    ],
)
def test_bad_compressed_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(body, compressed=True)


def test_a_body_that_inflates_without_end_is_refused() -> None:
    bomb = zlib.compress(bytes(module.INFLATED_BYTES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="inflates beyond"):
        read(bomb, compressed=True)


@pytest.mark.parametrize("mark", [b'"a":{},', b'"a":1,'])
def test_more_topics_than_any_broker_has_are_refused_before_decoding(mark: bytes) -> None:
    body = b"{" + mark * (16 * module.TOPICS_MAX + 1) + b"}"
    with pytest.raises(RemoteProtocolError, match="more than"):
        read(body)
