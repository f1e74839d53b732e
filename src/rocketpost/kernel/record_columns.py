"""Loops that turn records into columns, filling the buffers of an Arrow batch.

:func:`lay_out` finds the parts of every record (the layout is in ``record_scan``) and reads its
numbers; the other functions fill one buffer each from those parts, or compare numbers. All buffers
belong to the caller: bytes, or arrays of 32- or 64-bit numbers. Nothing is read outside a record
that ``lay_out`` has found sound.

The functions are meant to be compiled. They also run uncompiled, but numpy is faster then. When
compiled they let the C library copy and compare bytes: most are in small pieces, and loops of our
own would take several instructions per byte.
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import memcmp, memmove

Bytes = bytes | memoryview
Buffer = memoryview
Places = Sequence[int] | memoryview

_MAGIC_V1 = 0xDAA3_20A7 - 2**32
_MAGIC_V2 = 0xDAA3_20AB - 2**32
_SMALLEST = 91
_ENTRY_BYTES = 20
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_DIGITS = b"0123456789ABCDEF"


def walk(data: Bytes, starts: Buffer, bytes_max: int) -> tuple[int, int]:
    """Walk over records by their sizes alone, from the first byte on.

    Args:
        data: The records.
        starts: Receives the start of each record; one element per 91 bytes is enough.
        bytes_max: The walk ends before a record that starts at or after this index.

    Returns:
        The number of records, and the index after the last: the end, or bytes that are not a
        record.
    """
    count = 0
    at = 0
    end = len(data)
    while end - at >= _SMALLEST and at < bytes_max:
        size = _int(data, at)
        magic = _int(data, at + 4)
        if (magic != _MAGIC_V1 and magic != _MAGIC_V2) or size < _SMALLEST or size > end - at:
            break
        starts[count] = at
        count += 1
        at += size
    return count, at


def lay_out(
    data: Bytes,
    starts: Places,
    ms_min: int,
    ms_max: int,
    places: Buffer,
    longs: Buffer,
    ints: Buffer,
) -> int:
    """Find the parts of records, and read their numbers.

    Args:
        data: The buffer with the records.
        starts: The start of each record; its size is known to be right.
        ms_min: Minimum time; earlier times are set to it.
        ms_max: Maximum time; later times are set to it.
        places: Receives seven columns, one after the other: the index of the store time, the
            start and end of the body, of the topic and of the properties.
        longs: Receives five columns: the queue offset, the position, the born and the store time
            in us, and the position of the prepared message.
        ints: Receives six columns: the size, the CRC of the body, the queue id, the flag, the
            sysFlag and the reconsume times.

    Returns:
        The number of sound records: all, or the ordinal of the first with wrong lengths.
    """
    count = len(starts)
    for i in range(count):
        at = starts[i]
        size = _int(data, at)
        end = at + size
        is_v2 = _int(data, at + 4) == _MAGIC_V2
        sys_flag = _int(data, at + 36)
        store_at = at + 56
        if sys_flag & _BORN_V6:
            store_at += 12
        rest_at = store_at + 16
        if sys_flag & _STORE_V6:
            rest_at += 12
        body_at = rest_at + 16
        if body_at > end:
            return i
        body_end = body_at + _int(data, body_at - 4)
        topic_at = body_end + (2 if is_v2 else 1)
        if body_end < body_at or topic_at > end:
            return i
        topic_end = topic_at + (_short(data, topic_at - 2) if is_v2 else data[topic_at - 1])
        text_at = topic_end + 2
        if topic_end < topic_at or text_at > end:
            return i
        if text_at + _short(data, text_at - 2) != end:
            return i
        places[i] = store_at
        places[count + i] = body_at
        places[2 * count + i] = body_end
        places[3 * count + i] = topic_at
        places[4 * count + i] = topic_end
        places[5 * count + i] = text_at
        places[6 * count + i] = end
        longs[i] = _long(data, at + 20)
        longs[count + i] = _long(data, at + 28)
        longs[2 * count + i] = 1000 * max(ms_min, min(_long(data, at + 40), ms_max))
        longs[3 * count + i] = 1000 * max(ms_min, min(_long(data, store_at), ms_max))
        longs[4 * count + i] = _long(data, rest_at + 4)
        ints[i] = size
        ints[count + i] = _int(data, at + 8)
        ints[2 * count + i] = _int(data, at + 12)
        ints[3 * count + i] = _int(data, at + 16)
        ints[4 * count + i] = sys_flag
        ints[5 * count + i] = _int(data, rest_at)
    return count


def number_queues(
    data: Bytes,
    topics_at: Places,
    topic_ends: Places,
    queue_ids: Places,
    offsets: Places,
    slots: Buffer,
    numbers: Buffer,
    found: Buffer,
) -> int:
    """Number the queues of records in order of appearance.

    Args:
        data: The buffer with the topics.
        topics_at: The start of each record's topic.
        topic_ends: The end of each record's topic.
        queue_ids: The queue id of each record.
        offsets: The offset of each record in its queue.
        slots: A hash table of zeros; a power of two in size, and larger than the record count.
        numbers: Receives the number of each record's queue.
        found: Receives three columns: a record of each queue, its lowest and its highest offset.

    Returns:
        The number of queues.
    """
    count = len(numbers)
    mask = len(slots) - 1
    queues = 0
    for i in range(count):
        begin = topics_at[i]
        size = topic_ends[i] - begin
        slot = _hash(data, begin, size, queue_ids[i]) & mask
        while slots[slot]:
            first = found[slots[slot] - 1]
            if (
                queue_ids[first] == queue_ids[i]
                and topic_ends[first] - topics_at[first] == size
                and _is_same(data, topics_at[first], data, begin, size)
            ):
                break
            slot = slot + 1 & mask
        if not slots[slot]:
            found[queues] = i
            found[count + queues] = offsets[i]
            found[2 * count + queues] = offsets[i]
            queues += 1
            slots[slot] = queues
        queue = slots[slot] - 1
        numbers[i] = queue
        if offsets[i] < found[count + queue]:
            found[count + queue] = offsets[i]
        if offsets[i] > found[2 * count + queue]:
            found[2 * count + queue] = offsets[i]
    return queues


def find_in_queues(
    entries: Bytes,
    numbers: Places,
    offsets: Places,
    positions: Places,
    limits: Places,
    visible: Buffer,
) -> None:
    """Mark the records that their queues point at, or cannot point at yet.

    Args:
        entries: Queue entries: position 8, size 4, hash of tags 8. An entry beyond them is empty.
        numbers: The number of each record's queue.
        offsets: The offset of each record in its queue.
        positions: The position of each record.
        limits: Four columns by queue: the ordinal in ``entries`` that offset 0 would have, the
            first offset that counts if its entry is empty, the first position that counts then,
            and the first position that counts at all.
        visible: Receives 1 for records that are pointed at, 0 for others.
    """
    queues = len(limits) // 4
    room = len(entries) // _ENTRY_BYTES
    for i in range(len(numbers)):
        queue = numbers[i]
        offset = offsets[i]
        position = positions[i]
        ordinal = limits[queue] + offset
        size = 0
        if 0 <= ordinal < room:
            size = _int(entries, ordinal * _ENTRY_BYTES + 8)
        if size:
            hit = size > 0 and _long(entries, ordinal * _ENTRY_BYTES) == position
        else:
            hit = offset >= limits[queues + queue] and position >= limits[2 * queues + queue]
        visible[i] = hit and position >= limits[3 * queues + queue]


def measure(begins: Places, ends: Places, offsets: Buffer) -> int:
    """Fill the offsets of joined slices; return their total size, which is the last offset."""
    total = 0
    for i in range(len(begins)):
        offsets[i] = total
        total += ends[i] - begins[i]
    offsets[len(begins)] = total
    return total


def copy_slices(data: Bytes, begins: Places, offsets: Places, joined: Buffer) -> None:
    """Join slices of the data, at the offsets from :func:`measure`."""
    for i in range(len(begins)):
        _copy(data, begins[i], joined, offsets[i], offsets[i + 1] - offsets[i])


def is_ascii(text: Bytes) -> bool:
    """Tell whether bytes are ASCII, and so valid UTF-8."""
    every = 0
    for i in range(len(text)):
        every |= text[i]
    return every < 128


def write_ids(data: Bytes, hosts_at: Places, shift: int, starts: Places, text: Buffer) -> None:
    """Write message ids, 32 characters each: the IPv4 store host and the position, in hex.

    Most ids differ from the previous one in their last digits only.
    """
    host = 0
    high = 0
    for i in range(len(starts)):
        at = 32 * i
        host_at = hosts_at[i] + shift
        place = starts[i] + 28
        known = 0
        if i > 0 and _long(data, host_at) == host:
            known = 8
            if _int(data, place) == high:
                known = 12
            _copy(text, at - 32, text, at, 2 * known)
        host = _long(data, host_at)
        high = _int(data, place)
        for k in range(known, 16):
            byte = data[host_at + k] if k < 8 else data[place + k - 8]
            text[at + 2 * k] = _DIGITS[byte >> 4]
            text[at + 2 * k + 1] = _DIGITS[byte & 15]


def write_hosts(data: Bytes, hosts_at: Places, shift: int, offsets: Buffer, text: Buffer) -> int:
    """Write IPv4 hosts as ``1.2.3.4:port``.

    Args:
        data: The buffer with the hosts.
        hosts_at: The start of each host, less ``shift``.
        shift: The number to add to every start.
        offsets: Receives the start of each text, and the end of the last.
        text: Receives the texts; 27 bytes for each are enough.

    Returns:
        The number of bytes written.
    """
    size = 0
    known = 0
    for i in range(len(hosts_at)):
        offsets[i] = size
        at = hosts_at[i] + shift
        host = _long(data, at)
        is_known = i > 0 and host == known
        known = host
        if is_known:
            begin = offsets[i - 1]
            _copy(text, begin, text, size, size - begin)
            size += size - begin
            continue
        for k in range(4):
            size = _write_number(data[at + k], text, size)
            text[size] = 46 if k < 3 else 58  # a dot or a colon
            size += 1
        port = _int(data, at + 4)
        if port < 0:
            text[size] = 45  # no real port is negative, but damaged bytes may be
            size += 1
            port = -port
        size = _write_number(port, text, size)
    offsets[len(hosts_at)] = size
    return size


def _write_number(number: int, text: Buffer, at: int) -> int:
    """Write a number in decimal; return the index after it."""
    power = 1
    while number // power >= 10:
        power *= 10
    while power:
        text[at] = 48 + number // power % 10
        at += 1
        power //= 10
    return at


def _hash(data: Bytes, begin: int, size: int, seed: int) -> int:
    """Return a hash of a slice and a number."""
    code = seed & 0x7FFF_FFFF
    for k in range(begin, begin + size):
        code = (code * 31 + data[k]) & 0x7FFF_FFFF
    return code ^ code >> 15


def _is_same(data: Bytes, at: int, other: Bytes, begin: int, size: int) -> bool:
    """Tell whether two slices are equal."""
    is_same: bool
    if size == 0:  # the address of the byte behind a buffer may not be taken
        is_same = True
    elif cython.compiled:
        is_same = memcmp(cython.address(data[at]), cython.address(other[begin]), size) == 0
    else:
        is_same = data[at : at + size] == other[begin : begin + size]
    return is_same


def _copy(data: Bytes, begin: int, joined: Buffer, at: int, size: int) -> None:
    """Copy a slice, possibly within one buffer."""
    if size == 0:  # as in _is_same
        return
    if cython.compiled:
        memmove(cython.address(joined[at]), cython.address(data[begin]), size)
    else:
        joined[at : at + size] = data[begin : begin + size]


def _short(data: Bytes, at: int) -> int:
    """Return a signed number of 2 bytes."""
    number = data[at] << 8 | data[at + 1]
    return number - (number >> 15 << 16)


def _int(data: Bytes, at: int) -> int:
    """Return a signed number of 4 bytes."""
    number = _unsigned(data, at)
    return number - (number >> 31 << 32)


def _long(data: Bytes, at: int) -> int:
    """Return a signed number of 8 bytes."""
    return _int(data, at) << 32 | _unsigned(data, at + 4)


def _unsigned(data: Bytes, at: int) -> int:
    """Return a number of 4 bytes."""
    number: int
    if cython.compiled:  # compilers turn exactly this form into one load
        four = cython.address(data[at])
        number = four[0] << 24 | four[1] << 16 | four[2] << 8 | four[3]
    else:
        number = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
    return number
