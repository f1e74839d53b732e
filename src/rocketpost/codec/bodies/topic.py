"""JSON bodies about topics: the table of a broker, lists of names, the state of the queues."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from rocketpost.codec.bodies.leniency import decode_body, fill
from rocketpost.codec.lenient_json import decode_any, encode, members, standardize
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import DataVersion, TopicChange, TopicConfig

_QUEUES_AT_A_STEP: Final = 256


class TopicTableBody(msgspec.Struct, rename="camel", kw_only=True):
    """Every topic of a broker and the version of the table, in files, registrations and answers."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class _WithMappings(msgspec.Struct, rename="camel", kw_only=True):
    # In the order in which Java writes them. We have no static topics, but other brokers and tools
    # expect the members.
    data_version: DataVersion
    mapping_data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig]
    topic_queue_mapping_detail_map: dict[str, msgspec.Raw] = {}
    topic_queue_mapping_info_map: dict[str, msgspec.Raw] = {}


class _TopicChanges(msgspec.Struct, rename="camel"):
    topic_config_list: list[TopicChange] = []


class TopicList(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Names of topics, and the broker that listed them."""

    broker_addr: str | None = None
    topic_list: list[str]


class TopicQueueState(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One queue as ``topicStatus`` shows it."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """Every queue of a topic, and its rate of incoming messages per second."""

    queues: dict[MessageQueue, TopicQueueState]
    put_tps: float = 0.0


def encode_topic_table(body: TopicTableBody, *, mappings: bool = True) -> bytes:
    """Return the text of a topic table; ``mappings`` adds the empty members of static topics."""
    if not mappings:
        return encode(body)
    return encode(
        _WithMappings(data_version=body.data_version, topic_config_table=body.topic_config_table)
    )


def decode_topic_table(data: bytes | memoryview) -> TopicTableBody:
    """Read a topic table, from the wire or from a file.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, TopicTableBody)


def decode_topic_changes(data: bytes | memoryview) -> list[TopicChange]:
    """Read the topics of UPDATE_AND_CREATE_TOPIC_LIST.

    Raises:
        RemoteProtocolError: The body is not a list of topics.
    """
    return decode_body(data, _TopicChanges).topic_config_list


def encode_topic_configs(configs: Iterable[TopicConfig]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_TOPIC_LIST."""
    return encode({"topicConfigList": list(configs)})


def decode_topic_list(data: bytes | memoryview) -> TopicList:
    """Read a list of topic names.

    Raises:
        RemoteProtocolError: The body is not a list of names.
    """
    return decode_body(data, TopicList)


def queue_key(queue: MessageQueue) -> bytes:
    """Return a queue as the object literal that Java uses for a map key."""
    return encode(queue)


def parse_queue_key(text: str) -> MessageQueue:
    """Read the text that ``standardize`` makes of an object key.

    Raises:
        RemoteProtocolError: The text is not a queue.
    """
    return fill(MessageQueue, decode_any(text.encode()))


def parse_queue_table(table: object) -> Mapping[MessageQueue, object]:
    """Return a decoded table with its object keys parsed as queues.

    Raises:
        RemoteProtocolError: ``table`` is not such a table.
    """
    if not isinstance(table, dict):
        raise RemoteProtocolError("bad body: a table by queue is missing")
    return {parse_queue_key(key): value for key, value in table.items()}


def encode_topic_state(state: TopicState) -> bytes:
    """Return the body of GET_TOPIC_STATS_INFO, its keys object literals."""
    steps = encode_topic_state_steps(state)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bytes(end.value)


def encode_topic_state_steps(state: TopicState) -> Generator[None, None, bytes]:
    """Encode in steps, since a topic may have thousands of queues; return the same body."""
    parts = []
    left = iter(state.queues.items())
    while some := list(islice(left, _QUEUES_AT_A_STEP)):
        parts.append(bytes(members((queue_key(queue), encode(each)) for queue, each in some))[1:-1])
        if len(some) == _QUEUES_AT_A_STEP:
            yield
    return b'{"offsetTable":{%b},"topicPutTps":%b}' % (b",".join(parts), encode(state.put_tps))


def decode_topic_state(data: bytes | memoryview) -> TopicState:
    """Read the body of GET_TOPIC_STATS_INFO.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    plain = decode_object(data)
    queues = parse_queue_table(plain.get("offsetTable", {}))
    return TopicState(
        queues={queue: fill(TopicQueueState, value) for queue, value in queues.items()},
        put_tps=fill(float, plain.get("topicPutTps", 0.0)),
    )


def decode_object(data: bytes | memoryview) -> dict[str, object]:
    """Decode a body that must be a JSON object; object keys become their text.

    Raises:
        RemoteProtocolError: The body is not an object.
    """
    plain = decode_any(standardize(bytes(data)))
    if not isinstance(plain, dict):
        raise RemoteProtocolError("bad body: not a JSON object")
    return plain
