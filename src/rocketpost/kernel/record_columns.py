"""Records to columns: the loops that fill the buffers of an Arrow batch.

:func:`lay_out` notes where the parts of every record lie (the layout is in ``record_scan``) and
reads its numbers; the others fill one buffer each, from those places, or compare numbers. All
buffers are the caller's: bytes, or arrays of 32- or 64-bit numbers. Nothing is read outside a
record that ``lay_out`` has found sound.

These are made to be compiled. They also run as they are, but there numpy is the faster way.
"""

from __future__ import annotations

from collections.abc import Sequence

Bytes = bytes | memoryview
Buffer = memoryview
Places = Sequence[int] | memoryview

_MAGIC_V1 = 0xDAA3_20A7 - 2**32
_MAGIC_V2 = 0xDAA3_20AB - 2**32
_SMALLEST = 91
_ENTRY_BYTES = 20
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_NAME_END = 1
_VALUE_END = 2
_DIGITS = b"0123456789ABCDEF"


def walk(data: Bytes, starts: Buffer, bytes_max: int) -> tuple[int, int]:
    """Walk records by their sizes alone, from the first byte on.

    Args:
        data: The records.
        starts: Takes where each begins; one place for every 91 bytes is enough.
        bytes_max: No record that begins from there on is taken.

    Returns:
        How many there are, and the place after the last: the end, or what is no record.
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
    """Note where the parts of records lie, and read their numbers.

    Args:
        data: Where the records are.
        starts: Where each begins; its size is known to be true.
        ms_min: Earlier times become this one.
        ms_max: Later times become this one.
        places: Takes seven numbers of each, all of the first kind, then all of the second and so
            on: where the store time lies, the body and its end, the topic and its end, the
            properties and their end.
        longs: Takes, in the same way, the queue offset, the position, the born and the store time
            in us, and the position of the prepared message.
        ints: Takes, in the same way, the size, the CRC of the body, the queue id, the flag, the
            sysFlag and the reconsume times.

    Returns:
        How many records are sound: all, or the ordinal of the first whose lengths lie.
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
    """Number the queues of records in the order in which they come.

    Args:
        data: Where the topics are.
        topics_at: Where each begins.
        topic_ends: Where each ends.
        queue_ids: The queue of each record in its topic.
        offsets: The offset of each record in its queue.
        slots: Zeros, a power of two of them and more than there are records: a table of hashes.
        numbers: Takes the number of every record's queue.
        found: Takes three thirds: a record of each queue, the lowest offset and the highest.

    Returns:
        How many queues there are.
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
    """Tell which records their queues point at, or cannot point at yet.

    Args:
        entries: Entries of queues: position 8, size 4, hash of tags 8. What lies outside of them
            is an empty one.
        numbers: The number of every record's queue.
        offsets: The offset of each record in its queue.
        positions: The position of each record.
        limits: Four numbers of each queue, all of the first kind, then all of the second and so
            on: the ordinal among ``entries`` that offset 0 would have, the first offset that
            counts if its entry is empty, the first position that does, the first position that
            counts at all.
        visible: Takes 1 for records that are pointed at, 0 for others.
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
    """Add up how long slices are; returns the sum, which is the last offset as well."""
    total = 0
    for i in range(len(begins)):
        offsets[i] = total
        total += ends[i] - begins[i]
    offsets[len(begins)] = total
    return total


def copy_slices(data: Bytes, begins: Places, offsets: Places, joined: Buffer) -> None:
    """Put slices of the data one behind the other, at offsets that :func:`measure` gave."""
    for i in range(len(begins)):
        _copy(data, begins[i], joined, offsets[i], offsets[i + 1])


def is_ascii(text: Bytes) -> bool:
    """Tell whether bytes are ASCII, and thus UTF-8 for sure."""
    every = 0
    for i in range(len(text)):
        every |= text[i]
    return every < 128


def split_properties(
    data: Bytes, begins: Places, ends: Places, row_ends: Buffer, pairs: Buffer
) -> int:
    """Cut property strings into pairs, as ``codec.properties`` does.

    Args:
        data: Where the strings are.
        begins: Where each begins.
        ends: Where each ends.
        row_ends: Takes 0, and the number of pairs up to the end of each string.
        pairs: Takes four quarters: where names begin and end, and where values do. A quarter
            needs room for a pair of every three bytes.

    Returns:
        How many pairs there are.
    """
    room = len(pairs) // 4
    found = 0
    row_ends[0] = 0
    for i in range(len(begins)):
        first = found
        at = begins[i]
        end = ends[i]
        name_at = at
        name_end = end
        while at <= end:
            while at < end and data[at] > _VALUE_END:
                at += 1
            if at == end or data[at] == _VALUE_END:
                # Without a name or a value it does not count.
                if name_at < name_end < at - 1:
                    row = _pair_of(data, pairs, first, found, name_at, name_end)
                    pairs[row] = name_at
                    pairs[room + row] = name_end
                    pairs[2 * room + row] = name_end + 1
                    pairs[3 * room + row] = at
                    if row == found:
                        found += 1
                name_at = at + 1
                name_end = end
            elif data[at] == _NAME_END and name_end == end:
                name_end = at
            at += 1
        row_ends[i + 1] = found
    return found


def find_values(
    data: Bytes, name: bytes, row_ends: Places, pairs: Places, begins: Buffer, ends: Buffer
) -> int:
    """Find what each string says for a name.

    Args:
        data: Where the strings are.
        name: The name.
        row_ends: As :func:`split_properties` left it.
        pairs: The same.
        begins: Takes where the values begin; -1 where there is none.
        ends: Takes where they end; -1 where there is none.

    Returns:
        How many have one.
    """
    room = len(pairs) // 4
    size = len(name)
    found = 0
    for i in range(len(begins)):
        begins[i] = -1
        ends[i] = -1
        for row in range(row_ends[i], row_ends[i + 1]):
            name_at = pairs[row]
            if pairs[room + row] - name_at == size and _is_same(data, name_at, name, 0, size):
                begins[i] = pairs[2 * room + row]
                ends[i] = pairs[3 * room + row]
                found += 1
                break
    return found


def write_ids(data: Bytes, hosts_at: Places, shift: int, starts: Places, text: Buffer) -> None:
    """Write message ids, 32 characters each: the IPv4 store host and the position, in hex."""
    for i in range(len(starts)):
        at = 32 * i
        for k in range(16):
            byte = data[hosts_at[i] + shift + k] if k < 8 else data[starts[i] + 20 + k]
            text[at + 2 * k] = _DIGITS[byte >> 4]
            text[at + 2 * k + 1] = _DIGITS[byte & 15]


def write_hosts(data: Bytes, hosts_at: Places, shift: int, offsets: Buffer, text: Buffer) -> int:
    """Write IPv4 hosts as ``1.2.3.4:port``.

    Args:
        data: Where they are.
        hosts_at: With ``shift``, where each begins.
        shift: What is to be added to every place.
        offsets: Takes where each text begins, and the end.
        text: Takes the texts; 27 bytes for each is enough.

    Returns:
        How many bytes that makes.
    """
    size = 0
    for i in range(len(hosts_at)):
        offsets[i] = size
        at = hosts_at[i] + shift
        if i and _is_same(data, at, data, hosts_at[i - 1] + shift, 8):
            begin = offsets[i - 1]
            end = size + size - begin
            for k in range(size, end):
                text[k] = text[k + begin - size]
            size = end
            continue
        for k in range(4):
            size = _write_number(data[at + k], text, size)
            text[size] = 46 if k < 3 else 58  # a point or a colon
            size += 1
        port = _int(data, at + 4)
        if port < 0:
            text[size] = 45  # nobody has such a port, but bytes may say so
            size += 1
            port = -port
        size = _write_number(port, text, size)
    offsets[len(hosts_at)] = size
    return size


def _write_number(number: int, text: Buffer, at: int) -> int:
    """Write digits; returns the place after them."""
    power = 1
    while number // power >= 10:
        power *= 10
    while power:
        text[at] = 48 + number // power % 10
        at += 1
        power //= 10
    return at


def _pair_of(
    data: Bytes, pairs: Places, first: int, found: int, name_at: int, name_end: int
) -> int:
    """Return which pair of a string has a name; ``found`` if none has. The last value counts."""
    room = len(pairs) // 4
    size = name_end - name_at
    for row in range(first, found):
        other = pairs[row]
        if pairs[room + row] - other == size and _is_same(data, other, data, name_at, size):
            return row
    return found


def _hash(data: Bytes, begin: int, size: int, seed: int) -> int:
    """Return a hash of some bytes and a number."""
    code = seed & 0x7FFF_FFFF
    for k in range(begin, begin + size):
        code = (code * 31 + data[k]) & 0x7FFF_FFFF
    return code ^ code >> 15


def _is_same(data: Bytes, at: int, other: Bytes, begin: int, size: int) -> bool:
    k = 0
    while k < size and data[at + k] == other[begin + k]:
        k += 1
    return k == size


def _copy(data: Bytes, begin: int, joined: Buffer, at: int, end: int) -> None:
    for k in range(end - at):
        joined[at + k] = data[begin + k]


def _short(data: Bytes, at: int) -> int:
    """Return a signed number of 2 bytes."""
    return -(data[at] >> 7) << 16 | data[at] << 8 | data[at + 1]


def _int(data: Bytes, at: int) -> int:
    """Return a signed number of 4 bytes."""
    number = -(data[at] >> 7)
    for k in range(4):
        number = number << 8 | data[at + k]
    return number


def _long(data: Bytes, at: int) -> int:
    """Return a signed number of 8 bytes."""
    number = _int(data, at)
    for k in range(4, 8):
        number = number << 8 | data[at + k]
    return number
