"""Records, properties, batches and queue entries out of arbitrary buffers."""

from __future__ import annotations

import struct

from fuzz.finding import Find
from fuzz.supply import Supply
from rocketpost.codec.batch import decode_batch, encode_batch
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import (
    Record,
    decode_record,
    decode_records,
    encode_record,
    pack_host,
    parse_message_id,
)
from rocketpost.errors import CorruptRecord, RemoteProtocolError
from rocketpost.kernel.queue_scan import scan_units
from rocketpost.kernel.record_scan import scan_records

_HOSTS = (pack_host("10.0.0.1", 10911), pack_host("fe80::1", 65535))


class Target:
    """Decodes stored bytes that nobody vouches for."""

    def check(self, data: bytes) -> None:
        """Decode ``data`` as each kind of thing."""
        supply = Supply(data)
        mode = supply.byte() % 4
        if mode == 0:
            self._records(supply.rest())
        elif mode == 1:
            self._records(mutated_records(supply))
        elif mode == 2:
            self._batch(supply.rest())
        else:
            self._small(supply)

    def close(self) -> None:
        """Nothing is held."""

    def _records(self, data: bytes) -> None:
        read = 0
        for record in decode_records(data):
            if record.size <= 0:
                raise Find(f"a record of {record.size} bytes")
            if record.topic.isascii():  # names that are taken always are
                again = decode_record(b"".join(encode_record(record)))
                if (again.body, again.properties) != (record.body, record.properties):
                    raise Find("a record does not survive being written again")
            read += record.size
            _use(record)
        if read > len(data):
            raise Find("records reach beyond the buffer")
        entries, at, _ = scan_records(data, 0, 0, count_max=1000)
        if not 0 <= at <= len(data):
            raise Find(f"the scan stopped at {at} of {len(data)}")
        for position, size, *_ in entries:
            try:
                decode_record(data, position)
            except CorruptRecord as error:
                raise Find(f"recovery takes what readers cannot read: {error}") from error
            if size <= 0:
                raise Find("a record without a size")

    def _batch(self, data: bytes) -> None:
        try:
            items = decode_batch(data)
        except RemoteProtocolError:
            return
        if len(encode_batch(items)) != len(data):
            raise Find("a batch does not survive being written again")
        for item in items:
            decode_properties(item.properties)

    def _small(self, supply: Supply) -> None:
        tags = frozenset({supply.number(0, 3)}) if supply.chance(2) else frozenset()
        count, size = supply.number(1, 40), supply.number(0, 1 << 20)
        data = supply.rest()
        decode_properties(data)
        units = data[: len(data) // 20 * 20]
        chosen, passed = scan_units(units, tags, count_max=count, bytes_max=size)
        if not 0 <= passed <= len(units) // 20 or len(chosen) > count:
            raise Find(f"{passed} of {len(units) // 20} entries passed, {len(chosen)} chosen")
        try:
            parse_message_id(data.decode("utf-8", "replace"))
        except RemoteProtocolError:
            return


def _use(record: Record) -> None:
    str(record.born_host)
    str(record.store_host)
    str(record.message_id)
    dict(record.properties)


def mutated_records(supply: Supply) -> bytes:
    """Return a few records, mostly with some numbers changed or the end cut off."""
    stream = bytearray()
    for _ in range(supply.number(1, 3)):
        record = Record(
            size=0, magic=0, body_crc=0, queue_id=supply.number(0, 9), flag=0, queue_offset=0,
            position=len(stream), sys_flag=supply.byte(), born_ms=1, store_ms=2,
            born_host_bytes=supply.pick(_HOSTS), store_host_bytes=supply.pick(_HOSTS),
            reconsume_times=0, prepared_position=0, body=supply.raw(40),
            topic="T" * supply.number(1, 200), properties_bytes=supply.raw(60),
        )  # fmt: skip
        stream += b"".join(encode_record(record))
    for _ in range(supply.number(0, 3)):
        at = supply.number(0, len(stream) - 1)
        value = supply.pick((-1, 0, 1, 2**31 - 1, -(2**31), supply.number(0, 2**32 - 1) - 2**31))
        stream[at : at + 4] = struct.pack(">i", value)[: len(stream) - at]
    return bytes(stream[: len(stream) - (supply.byte() if supply.chance(4) else 0)])
