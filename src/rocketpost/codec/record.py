"""The message record: the same bytes in the commit log and in the body of a pull response.

Big-endian; hosts take 8 bytes (IPv4) or 20 (IPv6, by a sysFlag bit each):

    total size        int32      whole record, this field included
    magic             uint32     V1 0xDAA320A7, V2 0xDAA320AB
    body crc          int32      CRC-32 of the body & 0x7FFFFFFF
    queue id          int32
    flag              int32      the sender's
    queue offset      int64
    position          int64      of this record in the commit log
    sysFlag           int32
    born time         int64      the sender's clock, ms
    born host         8 or 20    address, port as int32
    store time        int64      the broker's clock, ms
    store host        8 or 20
    reconsume times   int32
    prepared position int64      of the half message, in a commit record
    body              int32 + n
    topic             int8 + n   (V2: int16 + n)
    properties        int16 + n

V2 exists for topics over 127 characters. The end of a commit-log segment is a *blank*: int32 bytes
left, uint32 0xCBD43194, then anything. An offset message id is the store host and the position in
upper-case hex.
"""

from __future__ import annotations

import ipaddress
from struct import Struct, error
from typing import Any, Final
from zlib import crc32

import msgspec

from rocketpost.codec.properties import decode_properties
from rocketpost.errors import CorruptRecord, RemoteProtocolError
from rocketpost.kernel import pulled_records
from rocketpost.model import sysflag

MAGIC_V1: Final = 0xDAA320A7 - 2**32
MAGIC_V2: Final = 0xDAA320AB - 2**32
MAGIC_BLANK: Final = 0xCBD43194 - 2**32
CRC_MASK: Final = 0x7FFF_FFFF
SHORT_TOPIC_MAX: Final = 127

STORE_TIME_AT: Final = 56
"""Index of the store time if the born host is IPv4; 12 bytes further if it is IPv6."""
SYS_FLAG_AT: Final = 36

_IPV4_BYTES: Final = 8
_IPV6_BYTES: Final = 20
_FIXED: Final = Struct(">iiiiiqqiq")
_SHORT: Final = Struct(">h")
_PORT: Final = Struct(">i")


def _head(born_bytes: int, store_bytes: int) -> Struct:
    return Struct(f">iiiiiqqiq{born_bytes}sq{store_bytes}siqi")


HEADS: Final = {
    (born, store): _head(born, store)
    for born in (_IPV4_BYTES, _IPV6_BYTES)
    for store in (_IPV4_BYTES, _IPV6_BYTES)
}
"""The fixed fields, including the body length, by the lengths of born and store host."""
HEAD_V4: Final = HEADS[_IPV4_BYTES, _IPV4_BYTES]


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decoded record. ``body`` is a slice of the decoded buffer, of the same type."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    position: int
    sys_flag: int
    born_ms: int
    born_host_bytes: bytes
    store_ms: int
    store_host_bytes: bytes
    reconsume_times: int
    prepared_position: int
    body: bytes | memoryview
    topic: str
    properties_bytes: bytes

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded at each call."""
        return decode_properties(self.properties_bytes)

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the sender."""
        return unpack_host(self.born_host_bytes)

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the broker."""
        return unpack_host(self.store_host_bytes)

    @property
    def message_id(self) -> str:
        """The offset message id."""
        return message_id(self.store_host_bytes, self.position)


class CutRecord(msgspec.Struct, frozen=True, gc=False):
    """A record whose parts are found and checked, with a head that is still to be decoded."""

    queue_offset: int
    sys_flag: int
    head: bytes
    """All fields before the body, and its length."""
    body: bytes
    topic: str
    properties_bytes: bytes

    def decode(self) -> Record:
        """Return the whole record."""
        sys_flag = self.sys_flag
        born_bytes = _IPV6_BYTES if sys_flag & sysflag.BORN_HOST_V6 else _IPV4_BYTES
        store_bytes = _IPV6_BYTES if sys_flag & sysflag.STORE_HOST_V6 else _IPV4_BYTES
        fields = HEADS[born_bytes, store_bytes].unpack(self.head)
        return _record_of(fields, self.body, self.topic, self.properties_bytes)


def cut_records(data: bytes) -> tuple[list[CutRecord], int]:
    """Cut consecutive records, as in a pull response; return them and the index after the last.

    Stops at the first undecodable record, as :func:`decode_records` does.
    """
    return pulled_records.cut_records(data, CutRecord)


def topic_field(topic: str, *, long_topics: bool = True) -> tuple[int, bytes]:
    """Return the magic for a topic's length, and the topic with its length in front."""
    data = topic.encode()
    if long_topics and len(topic) > SHORT_TOPIC_MAX:
        return MAGIC_V2, _SHORT.pack(len(data)) + data
    return MAGIC_V1, len(data).to_bytes(1, "big") + data


def encode_record(record: Record) -> list[bytes | memoryview]:
    """Return the buffers of a record: head, body, tail. Computes size, CRC, magic and host bits.

    This is the plain form; the commit log packs the same fields without the object.
    """
    magic, topic = topic_field(record.topic)
    sys_flag = host_bits(record.sys_flag, record.born_host_bytes, record.store_host_bytes)
    tail = topic + _SHORT.pack(len(record.properties_bytes)) + record.properties_bytes
    head = HEADS[len(record.born_host_bytes), len(record.store_host_bytes)]
    packed = head.pack(
        head.size + len(record.body) + len(tail),
        magic,
        crc32(record.body) & CRC_MASK,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.position,
        sys_flag,
        record.born_ms,
        record.born_host_bytes,
        record.store_ms,
        record.store_host_bytes,
        record.reconsume_times,
        record.prepared_position,
        len(record.body),
    )
    return [packed, record.body, tail]


def decode_record(
    buffer: bytes | memoryview, offset: int = 0, *, verify_crc: bool = True
) -> Record:
    """Decode the record that starts at ``offset``.

    Raises:
        CorruptRecord: No complete and consistent record starts there.
    """
    try:
        record = _decode(buffer, offset)
    except (error, IndexError, UnicodeDecodeError) as reason:
        raise CorruptRecord(f"no record at byte {offset}: {reason}") from None
    # Like RocketMQ, recovery does not check the CRC of an empty body.
    if verify_crc and record.body and crc32(record.body) & CRC_MASK != record.body_crc:
        raise CorruptRecord(f"the body of the record at byte {offset} fails its CRC")
    return record


def locate(record: bytes | memoryview) -> tuple[int, int, int, int]:
    """Return a record's sysFlag, the start and end of its body and the start of its properties.

    Raises:
        CorruptRecord: A length points outside the record.
    """
    try:
        (sys_flag,) = _PORT.unpack_from(record, SYS_FLAG_AT)
        body_at = HEAD_V4.size
        if sys_flag & sysflag.BORN_HOST_V6:
            body_at += _IPV6_BYTES - _IPV4_BYTES
        if sys_flag & sysflag.STORE_HOST_V6:
            body_at += _IPV6_BYTES - _IPV4_BYTES
        (body_bytes,) = _PORT.unpack_from(record, body_at - 4)
        body_end = body_at + body_bytes
        if record[7] == MAGIC_V1 & 0xFF:
            properties_at = body_end + 3 + record[body_end]
        else:
            properties_at = body_end + 4 + _SHORT.unpack_from(record, body_end)[0]
    except (error, IndexError) as reason:
        raise CorruptRecord(f"a record cannot be read: {reason}") from None
    if body_bytes < 0 or not body_end < properties_at <= len(record):
        raise CorruptRecord("lengths in a record lead out of it")
    return sys_flag, body_at, body_end, properties_at


def decode_records(buffer: bytes | memoryview, *, verify_crc: bool = True) -> list[Record]:
    """Decode consecutive records, as in a pull response; stops at the first undecodable one."""
    records: list[Record] = []
    at = 0
    while at < len(buffer):
        try:
            record = decode_record(buffer, at, verify_crc=verify_crc)
        except CorruptRecord:
            break
        records.append(record)
        at += record.size
    return records


def host_bits(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """Return ``sys_flag`` with the address-family bits of the packed hosts."""
    sys_flag &= ~(sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6)
    if len(born_host) == _IPV6_BYTES:
        sys_flag |= sysflag.BORN_HOST_V6
    if len(store_host) == _IPV6_BYTES:
        sys_flag |= sysflag.STORE_HOST_V6
    return sys_flag


def pack_host(address: str, port: int) -> bytes:
    """Return an address and port in the form of a record; an IPv4-mapped address becomes IPv4.

    Raises:
        ValueError: ``address`` is not an IP address.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed + _PORT.pack(port)


def unpack_host(data: bytes) -> tuple[str, int]:
    """Return address and port of a packed host."""
    (port,) = _PORT.unpack_from(data, len(data) - 4)
    return str(ipaddress.ip_address(data[:-4])), port


def message_id(store_host: bytes, position: int) -> str:
    """Return the offset message id of a record."""
    return f"{store_host.hex().upper()}{position:016X}"


def parse_message_id(text: str) -> tuple[bytes, int]:
    """Return the packed store host and the position in an offset message id.

    Raises:
        RemoteProtocolError: ``text`` is not such an id.
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (_IPV4_BYTES + 8, _IPV6_BYTES + 8) or len(text) != 2 * len(data):
        raise RemoteProtocolError(f"{text!r} is not an offset message id")
    return data[:-8], int.from_bytes(data[-8:], "big", signed=True)


def _decode(buffer: bytes | memoryview, start: int) -> Record:
    fixed = _FIXED.unpack_from(buffer, start)
    size, magic, sys_flag = fixed[0], fixed[1], fixed[7]
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise IndexError(f"magic {magic & 0xFFFF_FFFF:#x}")
    end = start + size
    born_bytes = _IPV6_BYTES if sys_flag & sysflag.BORN_HOST_V6 else _IPV4_BYTES
    store_bytes = _IPV6_BYTES if sys_flag & sysflag.STORE_HOST_V6 else _IPV4_BYTES
    head = HEADS[born_bytes, store_bytes]
    fields = head.unpack_from(buffer, start)
    body_at = start + head.size
    topic_at = body_at + fields[14]
    if magic == MAGIC_V1:
        topic_at, topic_bytes = topic_at + 1, buffer[topic_at]
    else:
        topic_at, topic_bytes = topic_at + 2, _SHORT.unpack_from(buffer, topic_at)[0]
    properties_at = topic_at + topic_bytes + 2
    (properties_bytes,) = _SHORT.unpack_from(buffer, properties_at - 2)
    lengths_true = fields[14] >= 0 and topic_bytes >= 0 and properties_bytes >= 0
    if not lengths_true or properties_at + properties_bytes != end or end > len(buffer):
        raise IndexError(f"lengths do not add up to the total size {size}")
    return _record_of(
        fields,
        buffer[body_at : body_at + fields[14]],
        str(buffer[topic_at : topic_at + topic_bytes], "utf-8"),
        bytes(buffer[properties_at:end]),
    )


def _record_of(
    fields: tuple[Any, ...], body: bytes | memoryview, topic: str, properties: bytes
) -> Record:
    return Record(
        size=fields[0],
        magic=fields[1],
        body_crc=fields[2],
        queue_id=fields[3],
        flag=fields[4],
        queue_offset=fields[5],
        position=fields[6],
        sys_flag=fields[7],
        born_ms=fields[8],
        born_host_bytes=fields[9],
        store_ms=fields[10],
        store_host_bytes=fields[11],
        reconsume_times=fields[12],
        prepared_position=fields[13],
        body=body,
        topic=topic,
        properties_bytes=properties,
    )
