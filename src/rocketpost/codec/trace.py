"""Message traces: records that clients write about messages, as text that Java's tools read.

A record is fields separated by U+0001 and ends with U+0002; records follow one another.

    Pub             time region group topic id tags keys broker body_bytes cost_ms kind offset_id ok
    SubBefore       time region group request_id id retry_times keys
    SubAfter        request_id id cost_ms ok keys outcome time group
    EndTransaction  time region group topic id tags keys broker kind transaction_id state from_check
    Recall          time region group topic id ok

The name is the first field. Times are milliseconds since the epoch. An empty text is written
``null``: Java drops empty fields at the end of a record and then fails to read it. Old clients
write fewer fields (Pub without the offset id, SubAfter without those after the keys); some write
more.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
_NULL: Final = "null"
_CLEAN: Final = str.maketrans({FIELD_END: " ", RECORD_END: " "})


class MessageKind(enum.IntEnum):
    """The kind of a sent message."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAYED = 3
    ORDERED = 4


class TraceOutcome(enum.IntEnum):
    """The outcome of handling a message."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class Pub(msgspec.Struct, frozen=True, kw_only=True):
    """The result of sending a message."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    kind: int = MessageKind.NORMAL
    offset_id: str = ""
    success: bool = True
    client_host: str = ""
    """Written by old clients only."""


class SubBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The start of handling a message."""

    time_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int = 0
    keys: str = ""


class SubAfter(msgspec.Struct, frozen=True, kw_only=True):
    """The end of handling a message; ``request_id`` is that of its SubBefore."""

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str = ""
    outcome: int = TraceOutcome.SUCCESS
    time_ms: int = 0
    group: str = ""


class EndTransactionTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's decision about a half message."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    kind: int = MessageKind.TRANSACTION_COMMIT
    transaction_id: str = ""
    state: str = "UNKNOW"
    from_check: bool = False


class RecallTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The result of recalling a timed message."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    success: bool = True


Trace = Pub | SubBefore | SubAfter | EndTransactionTrace | RecallTrace


def encode_trace(trace: Trace) -> str:
    """Return one record, including its end mark."""
    fields: list[str | int | bool]
    match trace:
        case Pub():
            fields = [
                "Pub", trace.time_ms, trace.region, trace.group, trace.topic, trace.message_id,
                trace.tags, trace.keys, trace.store_host, trace.body_bytes, trace.cost_ms,
                int(trace.kind), trace.offset_id, trace.success,
            ]  # fmt: skip
        case SubBefore():
            fields = [
                "SubBefore", trace.time_ms, trace.region, trace.group, trace.request_id,
                trace.message_id, trace.retry_times, trace.keys,
            ]  # fmt: skip
        case SubAfter():
            fields = [
                "SubAfter", trace.request_id, trace.message_id, trace.cost_ms, trace.success,
                trace.keys, int(trace.outcome), trace.time_ms, trace.group,
            ]  # fmt: skip
        case EndTransactionTrace():
            fields = [
                "EndTransaction", trace.time_ms, trace.region, trace.group, trace.topic,
                trace.message_id, trace.tags, trace.keys, trace.store_host, int(trace.kind),
                trace.transaction_id, trace.state, trace.from_check,
            ]  # fmt: skip
        case RecallTrace():
            fields = [
                "Recall", trace.time_ms, trace.region, trace.group, trace.topic,
                trace.message_id, trace.success,
            ]  # fmt: skip
    return FIELD_END.join(map(_field, fields)) + RECORD_END


def encode_traces(traces: Iterable[Trace]) -> str:
    """Return the records of several traces."""
    return "".join(map(encode_trace, traces))


def decode_traces(text: str) -> list[Trace]:
    """Return the readable records; an unreadable one must not hide the others."""
    found: list[Trace] = []
    for record in text.split(RECORD_END):
        fields = record.split(FIELD_END)
        decode = _DECODERS.get(fields[0].strip())
        if decode is None:
            continue
        try:
            found.append(decode([_text(field) for field in fields]))
        except (IndexError, ValueError):
            continue
    return found


def _pub(fields: list[str]) -> Pub:
    has_offset_id = len(fields) > 13
    return Pub(
        time_ms=int(fields[1]),
        region=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        body_bytes=int(fields[9]),
        cost_ms=int(fields[10]),
        kind=int(fields[11]),
        offset_id=fields[12] if has_offset_id else "",
        success=_flag(fields[13 if has_offset_id else 12]),
        client_host=fields[14] if len(fields) > 14 else "",
    )


def _sub_before(fields: list[str]) -> SubBefore:
    return SubBefore(
        time_ms=int(fields[1]),
        region=fields[2],
        group=fields[3],
        request_id=fields[4],
        message_id=fields[5],
        retry_times=int(fields[6]),
        keys=fields[7] if len(fields) > 7 else "",
    )


def _sub_after(fields: list[str]) -> SubAfter:
    success = _flag(fields[4])
    usual = TraceOutcome.SUCCESS if success else TraceOutcome.FAILED
    return SubAfter(
        request_id=fields[1],
        message_id=fields[2],
        cost_ms=int(fields[3]),
        success=success,
        keys=fields[5] if len(fields) > 5 else "",
        outcome=int(fields[6]) if len(fields) > 6 and fields[6] else usual,
        time_ms=int(fields[7]) if len(fields) > 8 else 0,
        group=fields[8] if len(fields) > 8 else "",
    )


def _end_transaction(fields: list[str]) -> EndTransactionTrace:
    return EndTransactionTrace(
        time_ms=int(fields[1]),
        region=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        kind=int(fields[9]),
        transaction_id=fields[10],
        state=fields[11],
        from_check=_flag(fields[12]),
    )


def _recall(fields: list[str]) -> RecallTrace:
    return RecallTrace(
        time_ms=int(fields[1]),
        region=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        success=_flag(fields[6]),
    )


_DECODERS: Final[dict[str, Callable[[list[str]], Trace]]] = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": _end_transaction,
    "Recall": _recall,
}


def _field(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value.translate(_CLEAN) or _NULL


def _text(field: str) -> str:
    return "" if field == _NULL else field


def _flag(field: str) -> bool:
    return field.lower() == "true"
