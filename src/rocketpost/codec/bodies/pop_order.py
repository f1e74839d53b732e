"""Batches popped in order: ``consumerOrderInfo.json``, and their records in the revive topic.

RocketMQ's table has, per topic, group and queue, the last batch that was popped in order: ``o`` its
offsets (the first one absolute, the others as distances from it), ``cm`` a bit for each
acknowledged message, ``oc`` the number of earlier deliveries of each, ``ot`` the time from which
each may be delivered again where that was changed (``popTime`` and ``i`` give it for the others),
``a`` the attempt, ``l`` the time of the last change.

A record in the revive topic is one such batch with its topic, group and queue, the group's next
offset (``n``), and the offsets acknowledged beyond the batch (``x``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rocketpost.codec.bodies.java_text import encode_number_keys, quote
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import members
from rocketpost.codec.numbers import Int32, Int64


class OrderInfo(msgspec.Struct, kw_only=True):
    """One batch that was popped in order."""

    a: str | None = None
    cm: Int64 = 0
    i: Int64 = 0
    l: Int64 = 0  # noqa: E741 - a name of the file
    o: list[Int64] = []
    oc: dict[int, int] = {}
    ot: dict[int, int] = {}
    pop_time: Int64 = msgspec.field(default=0, name="popTime")


class OrderRecord(msgspec.Struct, kw_only=True):
    """One batch with its topic, group and queue, as a message of the revive topic."""

    bn: str = ""
    c: str
    info: OrderInfo
    n: Int64
    q: Int32
    t: str
    x: list[Int64] = []


class OrderTableBody(msgspec.Struct, kw_only=True):
    """Batches by ``topic@group`` and queue."""

    table: dict[str, dict[int, OrderInfo]] = {}


def encode_order_info(info: OrderInfo) -> bytes:
    """Return the text of a batch, with Java's order of members and bare keys."""

    def numbers(values: Mapping[int, int]) -> bytes:
        return encode_number_keys(
            {key: b"%d" % value for key, value in values.items()}, quoted=False
        )

    parts = [(b'"a"', quote(info.a))] if info.a is not None else []
    parts += [
        (b'"cm"', b"%d" % info.cm),
        (b'"i"', b"%d" % info.i),
        (b'"l"', b"%d" % info.l),
        (b'"o"', b"[" + b",".join(b"%d" % each for each in info.o) + b"]"),
    ]
    parts += [(b'"oc"', numbers(info.oc))] if info.oc else []
    parts += [(b'"ot"', numbers(info.ot))] if info.ot else []
    parts.append((b'"popTime"', b"%d" % info.pop_time))
    return bytes(members(parts))


def encode_order_table(rows: Iterable[tuple[str, Mapping[int, OrderInfo]]]) -> bytes:
    """Return the text of the table."""
    texts = [
        (
            quote(name),
            encode_number_keys(
                {queue_id: encode_order_info(info) for queue_id, info in row.items()}, quoted=False
            ),
        )
        for name, row in rows
    ]
    return b'{"table":%b}' % bytes(members(texts))


def decode_order_table(data: bytes | memoryview) -> OrderTableBody:
    """Read the table, with bare or quoted numbers as keys.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    return decode_body(data, OrderTableBody)


def encode_order_record(record: OrderRecord) -> bytes:
    """Return the text of a record."""
    parts = [
        (b'"bn"', quote(record.bn)),
        (b'"c"', quote(record.c)),
        (b'"info"', encode_order_info(record.info)),
        (b'"n"', b"%d" % record.n),
        (b'"q"', b"%d" % record.q),
        (b'"t"', quote(record.t)),
        (b'"x"', b"[" + b",".join(b"%d" % each for each in record.x) + b"]"),
    ]
    return bytes(members(parts))


def decode_order_record(data: bytes | memoryview) -> OrderRecord:
    """Read a record.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    return decode_body(data, OrderRecord)
