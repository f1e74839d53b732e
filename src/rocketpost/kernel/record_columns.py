"""Records to columns: the loops that fill the buffers of an Arrow batch.

:func:`lay_out` notes where the parts of every record lie (the layout is in ``record_scan``) and
reads its numbers; the others fill one buffer each, from those places, or compare numbers. All
buffers are the caller's: bytes, or arrays of 32- or 64-bit numbers. Nothing is read outside a
record that ``lay_out`` has found sound.

These are made to be compiled. They also run as they are, but there numpy is the faster way. When
compiled they let the C library move and compare bytes: most lie in small pieces, and loops of our
own would take several instructions for each byte.
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import memchr, memcmp, memmove

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
        _copy(data, begins[i], joined, offsets[i], offsets[i + 1] - offsets[i])


def is_ascii(text: Bytes) -> bool:
    """Tell whether bytes are ASCII, and thus UTF-8 for sure."""
    every = 0
    for i in range(len(text)):
        every |= text[i]
    return every < 128


def split_properties(
    data: Bytes,
    begins: Places,
    ends: Places,
    row_ends: Buffer,
    name_ends: Buffer,
    names: Buffer,
    value_ends: Buffer,
    values: Buffer,
    alike: Buffer,
) -> int:
    """Cut property strings into names and values, as ``codec.properties`` does.

    Most strings have the names of the one before, in the same order, and the same values but for
    a few. So each pair is compared with its like in the string before, and where all the rest of
    both is the same, that is taken at once.

    Args:
        data: Where the strings are.
        begins: Where each begins.
        ends: Where each ends.
        row_ends: Takes 0, and the number of pairs up to the end of each string.
        name_ends: Takes 0, and where each name ends; one for every three bytes is enough.
        names: Takes the names, one behind the other; as many bytes as the strings have do.
        value_ends: As ``name_ends``, of the values.
        values: Takes the values, likewise.
        alike: Takes 1 for each string that has the names of the one before, in the same order; 0
            for others.

    Returns:
        How many pairs there are.
    """
    row_ends[0] = 0
    name_ends[0] = 0
    value_ends[0] = 0
    found = 0
    known = 0  # the first pair of the string before
    known_at = -1  # where its next pair is; -1 if that cannot be told
    known_end = 0
    for i in range(len(begins)):
        first = found
        at = begins[i]
        end = ends[i]
        is_alike = True  # up to here, the names are those of the string before
        while at < end:
            like = known + found - first
            is_alike = is_alike and like < first
            if (
                is_alike
                and known_at >= 0
                and known_end - known_at == end - at
                and _is_same(data, at, data, known_at, end - at)
            ):
                found = _again(like, first, found, name_ends, names)
                _again(like, first, found - first + like, value_ends, values)
                break
            name_end = at
            if is_alike:
                name_end += name_ends[like + 1] - name_ends[like]
                is_alike = (
                    name_end < end
                    and data[name_end] == _NAME_END
                    and _is_same(data, at, names, name_ends[like], name_end - at)
                )
            if is_alike:
                value_end = _find(data, name_end, end, _VALUE_END)
                if known_at >= 0:
                    known_at += name_end - at + value_ends[like + 1] - value_ends[like] + 2
            else:
                value_end = _find(data, at, end, _VALUE_END)
                name_end = _find(data, at, value_end, _NAME_END)
            # Without a name or a value it does not count.
            if at < name_end < value_end - 1:
                row = found
                if not is_alike:
                    row = _pair_of(data, at, name_end - at, name_ends, names, first, found)
                if row == found:
                    _append(data, at, name_end, name_ends, names, found)
                    _append(data, name_end + 1, value_end, value_ends, values, found)
                    found += 1
                else:
                    _replace(data, name_end + 1, value_end, value_ends, values, row, found)
            else:
                is_alike = False
            at = value_end + 1
        row_ends[i + 1] = found
        alike[i] = is_alike and found - first == first - known
        known = first
        known_at = begins[i]
        known_end = end
        size = name_ends[found] - name_ends[first] + value_ends[found] - value_ends[first]
        size += 2 * (found - first)
        if size != end - known_at and size != end - known_at + 1:
            known_at = -1  # not every pair counted
    return found


def find_values(
    name: bytes,
    row_ends: Places,
    name_ends: Places,
    names: Bytes,
    value_ends: Places,
    alike: Bytes,
    begins: Buffer,
    ends: Buffer,
) -> int:
    """Find what each string says for a name.

    Args:
        name: The name.
        row_ends: As :func:`split_properties` left it.
        name_ends: The same.
        names: The same.
        value_ends: The same.
        alike: The same.
        begins: Takes where among the values each begins; -1 where there is none.
        ends: Takes where they end; -1 where there is none.

    Returns:
        How many have one.
    """
    size = len(name)
    found = 0
    place = 0  # of the name among the others
    for i in range(len(begins)):
        first = row_ends[i]
        last = row_ends[i + 1]
        if not alike[i]:
            place = _pair_of(name, 0, size, name_ends, names, first, last) - first
        row = first + place
        if row < last:
            begins[i] = value_ends[row]
            ends[i] = value_ends[row + 1]
            found += 1
        else:
            begins[i] = -1
            ends[i] = -1
    return found


def write_ids(data: Bytes, hosts_at: Places, shift: int, starts: Places, text: Buffer) -> None:
    """Write message ids, 32 characters each: the IPv4 store host and the position, in hex.

    Most differ from the one before in the last digits alone.
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
        data: Where they are.
        hosts_at: With ``shift``, where each begins.
        shift: What is to be added to every place.
        offsets: Takes where each text begins, and the end.
        text: Takes the texts; 27 bytes for each is enough.

    Returns:
        How many bytes that makes.
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


def _append(data: Bytes, at: int, end: int, ends: Buffer, joined: Buffer, count: int) -> None:
    """Put a piece behind those that are there."""
    _copy(data, at, joined, ends[count], end - at)
    ends[count + 1] = ends[count] + end - at


def _again(like: int, last: int, count: int, ends: Buffer, joined: Buffer) -> int:
    """Put the pieces from ``like`` up to ``last`` behind those that are there once more.

    Returns:
        How many there are then.
    """
    shift = ends[count] - ends[like]
    _copy(joined, ends[like], joined, ends[count], ends[last] - ends[like])
    for row in range(like, last):
        count += 1
        ends[count] = ends[row + 1] + shift
    return count


def _replace(
    data: Bytes, at: int, end: int, ends: Buffer, joined: Buffer, row: int, count: int
) -> None:
    """Put a piece in the place of another one."""
    behind = ends[row + 1]
    shift = end - at - (behind - ends[row])
    _copy(joined, behind, joined, behind + shift, ends[count] - behind)
    _copy(data, at, joined, ends[row], end - at)
    for other in range(row, count):
        ends[other + 1] += shift


def _pair_of(
    data: Bytes, at: int, size: int, name_ends: Places, names: Bytes, first: int, found: int
) -> int:
    """Return which pair of a string has a name; ``found`` if none has. The last value counts."""
    for row in range(first, found):
        begin = name_ends[row]
        if name_ends[row + 1] - begin == size and _is_same(data, at, names, begin, size):
            return row
    return found


def _find(data: Bytes, at: int, end: int, mark: int) -> int:
    """Return where a mark is, or the end."""
    if cython.compiled:
        found = cython.cast(cython.p_uchar, memchr(cython.address(data[at]), mark, end - at))
        place = end if found is cython.NULL else at + (found - cython.address(data[at]))
    else:
        place = at
        while place < end and data[place] != mark:
            place += 1
    return place


def _hash(data: Bytes, begin: int, size: int, seed: int) -> int:
    """Return a hash of some bytes and a number."""
    code = seed & 0x7FFF_FFFF
    for k in range(begin, begin + size):
        code = (code * 31 + data[k]) & 0x7FFF_FFFF
    return code ^ code >> 15


def _is_same(data: Bytes, at: int, other: Bytes, begin: int, size: int) -> bool:
    """Tell whether two pieces are the same."""
    is_same: bool
    if cython.compiled:
        is_same = memcmp(cython.address(data[at]), cython.address(other[begin]), size) == 0
    else:
        is_same = data[at : at + size] == other[begin : begin + size]
    return is_same


def _copy(data: Bytes, begin: int, joined: Buffer, at: int, size: int) -> None:
    """Copy a piece; it may lie in the same buffer."""
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
    if cython.compiled:  # compilers make one load of this, if it is written in just this way
        four = cython.address(data[at])
        number = four[0] << 24 | four[1] << 16 | four[2] << 8 | four[3]
    else:
        number = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
    return number
