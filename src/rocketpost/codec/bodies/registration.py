"""The body of a broker's registration, in its plain and its compressed form.

Plain, the form of every current broker::

    {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{...},
     "mappingDataVersion":{...},"topicConfigTable":{"TopicA":{...}},
     "topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}

Compressed, a zlib stream of::

    int32 length, data version JSON
    int32 count, then per topic int32 length, "<topic> <read> <write> <perm> <filter> <attributes>"
    int32 length, filter server list JSON
    int32 count, then per static topic int32 length, mapping JSON     (senders from version 413 on)

The details of static mappings concern brokers only and stay empty here. A body is checked before it
is decoded: its inflated size and its number of topics are bounded.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec

from rocketpost.codec import lenient_json
from rocketpost.codec.bodies.java_text import array, quote
from rocketpost.codec.bodies.route import QueueMapping, encode_mapping
from rocketpost.codec.lenient_json import members
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.topic import DataVersion, TopicConfig

TOPICS_MAX: Final = 100_000
"""Maximum of topics per registration; the largest plain body of a real broker has fewer."""

INFLATED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum size of an inflated registration."""

_VERSION_FILTER_SERVERS: Final = 37  # 3.0.11; before it, the body was the topic table alone
_VERSION_MAPPINGS: Final = 413  # 5.0.0
_MEMBERS_MAX: Final = 16 * TOPICS_MAX
_INT: Final = struct.Struct(">i")


class RegisteredTopics(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The topics of a broker and the version of that table."""

    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}
    topic_queue_mapping_info_map: dict[str, QueueMapping] = {}


class RegistrationBody(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The body of REGISTER_BROKER."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: RegisteredTopics = RegisteredTopics()

    @property
    def table(self) -> RegisteredTopics:
        """The topics."""
        return self.topic_config_serialize_wrapper


def body_crc(body: bytes) -> int:
    """Return the checksum for the header; positive, because Java has no unsigned int."""
    return zlib.crc32(body) & 0x7FFF_FFFF


def decode_registration(body: bytes, *, version: int, compressed: bool) -> RegistrationBody:
    """Decode the body of a registration; an empty body means an empty table.

    Raises:
        RemoteProtocolError: The body is malformed, or exceeds a bound.
    """
    if not body:
        return RegistrationBody()
    if compressed:
        return _decode_compressed(body, version=version)
    _check_bounds(body)
    if version < _VERSION_FILTER_SERVERS:
        table = lenient_json.decode(body, RegisteredTopics)
        return RegistrationBody(topic_config_serialize_wrapper=table)
    return lenient_json.decode(body, RegistrationBody)


def encode_registration(registration: RegistrationBody, *, compressed: bool = False) -> bytes:
    """Encode the body of a registration as a broker of our version sends it."""
    if compressed:
        return _encode_compressed(registration)
    table = registration.table
    mappings = [
        (quote(name), encode_mapping(mapping, standard=False))
        for name, mapping in table.topic_queue_mapping_info_map.items()
    ]
    wrapper = [
        (b'"dataVersion"', encode_data_version(table.data_version)),
        (b'"mappingDataVersion"', encode_data_version(table.mapping_data_version)),
        (b'"topicConfigTable"', msgspec.json.encode(table.topic_config_table)),
        (b'"topicQueueMappingDetailMap"', b"{}"),
        (b'"topicQueueMappingInfoMap"', bytes(members(mappings))),
    ]
    filters = array(map(quote, registration.filter_server_list))
    body = [
        (b'"filterServerList"', filters),
        (b'"topicConfigSerializeWrapper"', bytes(members(wrapper))),
    ]
    return bytes(members(body))


def encode_data_version(version: DataVersion) -> bytes:
    """Encode the body of QUERY_DATA_VERSION and of its answer."""
    return msgspec.json.encode(version)


def decode_data_version(body: bytes | memoryview) -> DataVersion:
    """Decode the body of QUERY_DATA_VERSION or of its answer.

    Raises:
        RemoteProtocolError: The body is not a data version.
    """
    return lenient_json.decode(body, DataVersion)


def _check_bounds(body: bytes) -> None:
    # A topic is at least one object with a key; counting braces is far cheaper than decoding.
    if body.count(b"{") > 2 * TOPICS_MAX + 64 or body.count(b":") > _MEMBERS_MAX:
        raise RemoteProtocolError(f"the registration holds more than {TOPICS_MAX} topics")


def _encode_compressed(registration: RegistrationBody) -> bytes:
    table = registration.table
    parts = [_section(encode_data_version(table.data_version))]
    parts.append(_INT.pack(len(table.topic_config_table)))
    for name, config in table.topic_config_table.items():
        head = f"{name} {config.read_queue_nums} {config.write_queue_nums} {config.perm}"
        attributes = msgspec.json.encode(config.attributes)
        parts.append(_section(f"{head} {config.topic_filter_type} ".encode() + attributes))
    parts.append(_section(array(map(quote, registration.filter_server_list))))
    mappings = table.topic_queue_mapping_info_map.values()
    parts.append(_INT.pack(len(mappings)))
    parts += [_section(encode_mapping(mapping, standard=False)) for mapping in mappings]
    return zlib.compress(b"".join(parts), 9)


def _decode_compressed(body: bytes, *, version: int) -> RegistrationBody:
    reader = _Sections(_inflate(body))
    data_version = decode_data_version(reader.section())
    topics = {}
    for _ in range(reader.count(TOPICS_MAX)):
        config = _parse_topic(reader.section())
        topics[config.topic_name] = config
    filters = lenient_json.decode(reader.section(), list[str])
    mappings = {}
    if version >= _VERSION_MAPPINGS:
        for _ in range(reader.count(TOPICS_MAX)):
            mapping = lenient_json.decode(reader.section(), QueueMapping)
            mappings[mapping.topic] = mapping
    return RegistrationBody(
        filter_server_list=filters,
        topic_config_serialize_wrapper=RegisteredTopics(
            data_version=data_version,
            topic_config_table=topics,
            topic_queue_mapping_info_map=mappings,
        ),
    )


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"the registration is not a zlib stream: {error}") from None
    if not inflater.eof:
        raise RemoteProtocolError(
            f"the registration is cut short or inflates beyond {INFLATED_BYTES_MAX} bytes"
        )
    _check_bounds(data)
    return data


def _parse_topic(section: bytes) -> TopicConfig:
    parts = section.decode("utf-8", "replace").split(" ", 5)
    if len(parts) < 5:
        raise RemoteProtocolError("a topic of the registration lacks fields")
    try:
        read, write, perm = map(int, parts[1:4])
    except ValueError:
        raise RemoteProtocolError("a topic of the registration has a bad number") from None
    attributes = parts[5].encode() if len(parts) == 6 and parts[5].strip() else b"{}"
    return TopicConfig(
        topic_name=parts[0],
        read_queue_nums=read,
        write_queue_nums=write,
        perm=perm,
        topic_filter_type=parts[4],
        attributes=lenient_json.decode(attributes, dict[str, str]),
    )


def _section(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


class _Sections:
    """Reads counts and length-prefixed sections, never past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self, most: int) -> int:
        if self._at + _INT.size > len(self._data):
            raise RemoteProtocolError("the registration is cut short")
        (number,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        if not 0 <= number <= most:
            raise RemoteProtocolError(f"the registration has a bad length or count: {number}")
        return int(number)

    def section(self) -> bytes:
        size = self.count(len(self._data))
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise RemoteProtocolError("the registration is cut short")
        return self._data[start : self._at]
