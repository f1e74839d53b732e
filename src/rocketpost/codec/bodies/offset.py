"""JSON bodies about offsets, in the forms that Java writes and Go splits by hand.

Queue ids as map keys are bare integers, ``{0:5}``; queues as map keys are object literals,
``{{"brokerName":"a","queueId":0,"topic":"T"}:5}``. Both are compact: one space breaks Go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from rocketpost.codec.bodies.leniency import decode_body, fill
from rocketpost.codec.bodies.topic import decode_object, parse_queue_table, queue_key
from rocketpost.codec.lenient_json import encode, members
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import DataVersion

_quote_bare_keys = re.compile(rb"([{,]\s*)(\d+)\s*:").sub
_quote_queue_keys = re.compile(
    rb'\{"brokerName":"([^"\\]*)","queueId":(\d+),"topic":"([^"\\]*)"\}:'
).sub


class OffsetTableBody(msgspec.Struct, rename="camel", kw_only=True):
    """Next offsets of all groups of a broker, by ``topic@group`` and queue id.

    ``pending_reset_table`` is our own: offsets that an administrator set and the group's consumers
    have not adopted yet. ``to_master_table`` is our own and only in files: offsets that consumers
    committed at a slave and the master does not have yet.
    """

    data_version: DataVersion = DataVersion()
    offset_table: dict[str, dict[int, int]] = {}
    pending_reset_table: dict[str, dict[int, int]] = {}
    to_master_table: dict[str, dict[int, int]] = {}


class QueueProgress(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Progress of a group in one queue.

    ``standing`` is our own: why the group makes no progress although messages are waiting.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0
    standing: str | msgspec.UnsetType = msgspec.UNSET


class ConsumeState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a group, and its messages per second."""

    queues: dict[MessageQueue, QueueProgress]
    consume_tps: float = 0.0


class TimeSpan(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """First and last message time of a queue, and the time up to which the group has consumed."""

    consume_time_stamp: int
    delay_time: int
    max_time_stamp: int
    message_queue: MessageQueue
    min_time_stamp: int


class TimeSpans(msgspec.Struct, rename="camel"):
    """Answer to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[TimeSpan]


class BrokerConsumeState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of every group of a broker: one entry per group, one state per topic."""

    broker_addr: str
    groups: list[tuple[str, list[ConsumeState]]]
    total_diff: int = 0
    total_inflight_diff: int = 0


class _QuickState(msgspec.Struct, rename="camel"):
    """A state whose queues are texts: broker name, queue id and topic, with tabs between them."""

    offset_table: dict[str, QueueProgress] = {}
    consume_tps: float = 0.0

    def consume_state(self) -> ConsumeState:
        """Return the state with queues as values."""
        queues = {}
        for key, progress in self.offset_table.items():
            broker_name, queue_id, topic = key.split("\t")
            queues[MessageQueue(broker_name, int(queue_id), topic)] = progress
        return ConsumeState(queues=queues, consume_tps=self.consume_tps)


class _QuickBrokerState(msgspec.Struct, rename="camel"):
    broker_addr: str = ""
    consume_stats_list: list[dict[str, list[_QuickState]]] = []
    total_diff: int = 0
    total_inflight_diff: int = 0


def encode_offset_row(row: Mapping[int, int]) -> bytes:
    """Return offsets by queue id with bare keys: ``{0:5,1:6}``."""
    return b"{%b}" % b",".join(b"%d:%d" % item for item in row.items())


def encode_offset_table(
    version: DataVersion,
    rows: Iterable[tuple[str, bytes]],
    *,
    resets: Iterable[tuple[str, bytes]] = (),
    marks: Iterable[tuple[str, bytes]] = (),
    lines: bool = False,
) -> bytes:
    """Return an offset table made of rows from :func:`encode_offset_row`.

    Args:
        version: The version of the table.
        rows: Key and text of each row.
        resets: Key and text of each row of resets that consumers have not adopted yet.
        marks: Key and text of each row of commits that the master does not have yet.
        lines: Whether to write one row per line, for a file that people may open.
    """
    start, between, end = (b"\n\t", b",\n\t", b"\n") if lines else (b"", b",", b"")
    texts = between.join(encode(key) + b":" + text for key, text in rows)
    table = b'{"dataVersion":%b,"offsetTable":{%b%b%b}' % (encode(version), start, texts, end)
    for name, more in ((b"pendingResetTable", resets), (b"toMasterTable", marks)):
        if own := between.join(encode(key) + b":" + text for key, text in more):
            table += b',"%b":{%b%b%b}' % (name, start, own, end)
    return table + b"}"


def decode_offset_table(data: bytes | memoryview) -> OffsetTableBody:
    """Read an offset table with bare or quoted queue ids, from the wire or from a file.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    # Names contain no brace and no comma, so this quotes ids and nothing else. The table may be
    # large, and the lenient reader is slow.
    quoted = _quote_bare_keys(rb'\1"\2":', bytes(data))
    try:
        return msgspec.json.decode(quoted, type=OffsetTableBody, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_body(data, OffsetTableBody)


def encode_consume_state(state: ConsumeState) -> bytes:
    """Return the body of GET_CONSUME_STATS."""
    table = members((queue_key(queue), encode(value)) for queue, value in state.queues.items())
    return b'{"consumeTps":%b,"offsetTable":%b}' % (encode(state.consume_tps), bytes(table))


def decode_consume_state(data: bytes | memoryview) -> ConsumeState:
    """Read the body of GET_CONSUME_STATS.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return _consume_state(decode_object(data))


def encode_broker_consume_state(state: BrokerConsumeState) -> bytes:
    """Return the body of GET_BROKER_CONSUME_STATS."""
    groups = [
        bytes(members([(encode(group), b"[%b]" % b",".join(map(encode_consume_state, states)))]))
        for group, states in state.groups
    ]
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        encode(state.broker_addr),
        b",".join(groups),
        state.total_diff,
        state.total_inflight_diff,
    )


def decode_broker_consume_state(data: bytes | memoryview) -> BrokerConsumeState:
    """Read the body of GET_BROKER_CONSUME_STATS.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    # It may have many thousands of queues, and the lenient reader is slow. No name has a tab.
    quoted = _quote_queue_keys(rb'"\1\\t\2\\t\3":', bytes(data))
    try:
        quick = msgspec.json.decode(quoted, type=_QuickBrokerState, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_broker_consume_state_leniently(data)
    return BrokerConsumeState(
        broker_addr=quick.broker_addr,
        groups=[
            (group, [each.consume_state() for each in states])
            for entry in quick.consume_stats_list
            for group, states in entry.items()
        ],
        total_diff=quick.total_diff,
        total_inflight_diff=quick.total_inflight_diff,
    )


def _decode_broker_consume_state_leniently(data: bytes | memoryview) -> BrokerConsumeState:
    plain = decode_object(data)
    groups = fill(list[dict[str, list[dict[str, object]]]], plain.get("consumeStatsList", []))
    return BrokerConsumeState(
        broker_addr=fill(str, plain.get("brokerAddr", "")),
        groups=[
            (group, [_consume_state(each) for each in states])
            for entry in groups
            for group, states in entry.items()
        ],
        total_diff=fill(int, plain.get("totalDiff", 0)),
        total_inflight_diff=fill(int, plain.get("totalInflightDiff", 0)),
    )


def encode_queue_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the offsets of a reset in the form that Java and Go read."""
    return b'{"offsetTable":%b}' % _offsets_text(offsets)


def encode_queue_offset_list(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the offsets of a reset in the form that C++ reads."""
    entries = [
        {
            "brokerName": queue.broker_name,
            "offset": offset,
            "queueId": queue.queue_id,
            "topic": queue.topic,
        }
        for queue, offset in offsets.items()
    ]
    return encode({"offsetTable": entries})


def decode_queue_offsets(data: bytes | memoryview) -> dict[MessageQueue, int]:
    """Read the offsets of a reset in either form.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    table = decode_object(data).get("offsetTable", {})
    if isinstance(table, list):
        entries = fill(list[dict[str, object]], table)
        return {fill(MessageQueue, entry): fill(int, entry.get("offset", -1)) for entry in entries}
    return _offsets(table)


def encode_client_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return a client's answer to GET_CONSUMER_STATUS_FROM_CLIENT."""
    return b'{"consumerTable":{},"messageQueueTable":%b}' % _offsets_text(offsets)


def decode_client_offsets(data: bytes | memoryview) -> dict[MessageQueue, int]:
    """Read a client's answer to GET_CONSUMER_STATUS_FROM_CLIENT.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return _offsets(decode_object(data).get("messageQueueTable") or {})


def encode_member_offsets(offsets: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Return the body of INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets by client id."""
    table = members((encode(client), _offsets_text(each)) for client, each in offsets.items())
    return b'{"consumerTable":%b,"messageQueueTable":{}}' % bytes(table)


def decode_member_offsets(data: bytes | memoryview) -> dict[str, dict[MessageQueue, int]]:
    """Read the body of INVOKE_BROKER_TO_GET_CONSUMER_STATUS.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    table = fill(dict[str, object], decode_object(data).get("consumerTable") or {})
    return {client: _offsets(each) for client, each in table.items()}


def encode_correction(offsets: Mapping[int, int]) -> bytes:
    """Return the body of QUERY_CORRECTION_OFFSET."""
    return b'{"correctionOffsets":%b}' % encode_offset_row(offsets)


def _offsets_text(offsets: Mapping[MessageQueue, int]) -> bytes:
    return bytes(members((queue_key(queue), b"%d" % offset) for queue, offset in offsets.items()))


def _offsets(table: object) -> dict[MessageQueue, int]:
    return {queue: fill(int, value) for queue, value in parse_queue_table(table).items()}


def _consume_state(plain: dict[str, object]) -> ConsumeState:
    queues = parse_queue_table(plain.get("offsetTable", {}))
    try:
        return ConsumeState(
            queues={queue: fill(QueueProgress, value) for queue, value in queues.items()},
            consume_tps=fill(float, plain.get("consumeTps", 0.0)),
        )
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"bad consume stats: {error}") from None
