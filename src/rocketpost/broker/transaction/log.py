"""Records of a transaction in the log.

    half        RMQ_SYS_TRANS_HALF_TOPIC     the message; REAL_TOPIC, REAL_QID: its destination
    commit      its destination              a copy of the half, sysFlag COMMIT
    op          RMQ_SYS_TRANS_OP_HALF_TOPIC  tag d; queue offsets of halves that are done: 7,9,
    discarded   TRANS_CHECK_MAX_TIME_TOPIC   a copy of a half that never ended

Before a half is asked about, it is stored again with a higher count of checks, so that the count
survives; its previous offset is then done. All copies of one transaction and its commit have its
:class:`Identity`, so a crash between commit and op is detected. All records are as RocketMQ 5
stores them, and RocketMQ can finish what Rocketpost began. This module decides nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.faults import MessageIllegal
from rocketpost.codec.headers.transaction import EndTransaction
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, encode_properties
from rocketpost.codec.record import Record, host_bits
from rocketpost.errors import LocalProtocolError
from rocketpost.kernel.hashing import string_hash
from rocketpost.model import properties as names
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rocketpost.store.draft import Draft

OP_TAG: Final = "d"
SEPARATOR: Final = ","
CHECKS_MAX: Final = 2**31 - 1

_BOOKKEEPING_BYTES: Final = 128
"""Room reserved in a half's properties for those that its copies add."""
_DIGITS_MAX: Final = 18


class Identity(NamedTuple):
    """Fields that all copies of one half and its commit share.

    The unique key alone is not enough: sending one message object twice means two messages. The
    sender's address would be too much: a client that resends may have reconnected.
    """

    unique_key: str
    born_ms: int


def identity_of(record: Record, properties: dict[str, str]) -> Identity:
    """Return the identity of a copy."""
    return Identity(properties.get(names.UNIQUE_KEY, ""), record.born_ms)


def half_draft(draft: Draft, properties: dict[str, str]) -> Draft:
    """Return the half to store for a message until its transaction ends.

    Raises:
        MessageIllegal: There is no room for the additional properties.
    """
    properties[names.TRANSACTION_ID] = properties[names.UNIQUE_KEY]
    properties[names.REAL_TOPIC] = draft.topic
    properties[names.REAL_QUEUE_ID] = str(draft.queue_id)
    for name in (names.TRANSACTION_CHECKS, names.PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)  # counted by the broker
    try:
        encoded = encode_properties(properties)
    except LocalProtocolError as error:
        raise MessageIllegal(str(error)) from None
    room = PROPERTIES_BYTES_MAX - _BOOKKEEPING_BYTES
    if len(encoded) > room:
        raise MessageIllegal(
            f"the properties take {len(encoded)} bytes; a transactional message has room for {room}"
        )
    return msgspec.structs.replace(
        draft,
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=draft.sys_flag & ~TRANSACTION_MASK,
        properties=encoded,
    )


def commit_draft(record: Record, *, topic: str, queue_id: int, store_host: bytes) -> Draft:
    """Return the commit of a half."""
    draft = _copy(record, topic, queue_id, store_host)
    draft.sys_flag |= TRANSACTION_COMMIT
    draft.prepared_position = record.position
    return draft


def renewed_draft(record: Record, *, checks: int, store_host: bytes) -> Draft:
    """Return a new copy of a half, with a count of checks.

    Raises:
        LocalProtocolError: RocketMQ stored it and left no room for the count.
    """
    properties = record.properties
    properties.setdefault(names.PREPARED_QUEUE_OFFSET, str(record.queue_offset))
    if checks or names.TRANSACTION_CHECKS in properties:
        properties[names.TRANSACTION_CHECKS] = str(checks)
    draft = _copy(record, HALF_TOPIC, 0, store_host)
    draft.properties = encode_properties(properties)
    return draft


def discard_draft(record: Record, *, store_host: bytes) -> Draft:
    """Return the copy of a half that never ended, to be stored for operators."""
    return _copy(record, CHECK_MAX_TOPIC, 0, store_host)


def resumed_draft(record: Record, *, store_host: bytes) -> Draft:
    """Return a discarded half as a new one that was never asked about."""
    properties = record.properties
    properties.pop(names.PREPARED_QUEUE_OFFSET, None)
    properties[names.TRANSACTION_CHECKS] = "0"
    draft = _copy(record, HALF_TOPIC, 0, store_host)
    draft.properties = encode_properties(properties)
    return draft


def op_draft(offsets: list[int], *, now_ms: int, store_host: bytes, unique_key: str) -> Draft:
    """Return the op message that names halves that are done."""
    assert offsets
    properties = {
        names.TAGS: OP_TAG,
        names.UNIQUE_KEY: unique_key,
        names.WAIT_STORE: "false",
    }
    return Draft(
        OP_HALF_TOPIC,
        0,
        0,
        host_bits(0, store_host, store_host),
        now_ms,
        store_host,
        store_host,
        0,
        0,
        "".join(f"{offset}{SEPARATOR}" for offset in offsets).encode(),
        encode_properties(properties),
        string_hash(OP_TAG),
        (unique_key,),
    )


def ended_offsets(record: Record) -> list[int]:
    """Return the offsets of the halves that an op message names; RocketMQ 4 names one each."""
    if record.properties.get(names.TAGS) != OP_TAG:
        return []
    words = bytes(record.body).decode("ascii", "replace").split(SEPARATOR)
    return [int(word) for word in words if _is_number(word)]


def checks_of(properties: dict[str, str]) -> int:
    """Return the number of checks of a half."""
    text = properties.get(names.TRANSACTION_CHECKS, "")
    return min(int(text), CHECKS_MAX) if _is_number(text) else 0


def first_offset(record: Record, properties: dict[str, str]) -> int:
    """Return the queue offset of the first copy of a half, as recorded in this copy."""
    text = properties.get(names.PREPARED_QUEUE_OFFSET, "")
    return int(text) if _is_number(text) else record.queue_offset


def immunity_ms(properties: dict[str, str], *, default_ms: int) -> int:
    """Return the time after sending during which a half is not asked about."""
    text = properties.get(names.TRANSACTION_IMMUNITY, "")
    return 1000 * int(text) if _is_number(text) else default_ms


def destination(properties: dict[str, str]) -> tuple[str, int] | None:
    """Return the destination topic and queue of a half; None if it names none."""
    topic, queue_id = properties.get(names.REAL_TOPIC), properties.get(names.REAL_QUEUE_ID, "")
    if not topic or not _is_number(queue_id) or topic in (HALF_TOPIC, OP_HALF_TOPIC):
        return None
    return topic, int(queue_id)


def is_ended_by(header: EndTransaction, properties: dict[str, str]) -> bool:
    """Tell whether a half message is of the producer that ends it.

    Producers of gRPC have a group with the name of their topic, and a right to that topic only. A
    half of another topic may have a group of the same name.
    """
    if header.producer_group != properties.get(names.PRODUCER_GROUP):
        return False
    is_topic = header.producer_group == header.topic
    return not is_topic or properties.get(names.REAL_TOPIC) == header.topic


def _copy(record: Record, topic: str, queue_id: int, store_host: bytes) -> Draft:
    return Draft.copy_of(
        record,
        topic=topic,
        queue_id=queue_id,
        store_host=store_host,
        sys_flag=record.sys_flag & ~TRANSACTION_MASK,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
