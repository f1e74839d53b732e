"""Loops that split property strings into columns of names and values.

As in ``record_columns``: all buffers belong to the caller, and the functions are meant to be
compiled. The two helpers at the end are the same as there, because C code is inlined within one
module only.
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

_NAME_END = 1
_VALUE_END = 2


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
    """Split property strings into names and values, as ``codec.properties`` does.

    Most strings have the same names as the previous one, in the same order, and mostly the same
    values. So each pair is compared with its counterpart in the previous string, and where the
    rest of both strings is equal, it is copied at once.

    Args:
        data: The buffer with the strings.
        begins: The start of each string.
        ends: The end of each string.
        row_ends: Receives 0, and the number of pairs up to the end of each string.
        name_ends: Receives 0, and the end of each name; one element per three bytes is enough.
        names: Receives the joined names; as many bytes as the strings have are enough.
        value_ends: As ``name_ends``, for the values.
        values: As ``names``, for the values.
        alike: Receives 1 for each string with the names of the previous one, in the same order; 0
            for others.

    Returns:
        The number of pairs.
    """
    row_ends[0] = 0
    name_ends[0] = 0
    value_ends[0] = 0
    found = 0
    known = 0  # the first pair of the previous string
    known_at = -1  # the index of its next pair; -1 if unknown
    known_end = 0
    for i in range(len(begins)):
        first = found
        at = begins[i]
        end = ends[i]
        is_alike = True  # so far, the names are those of the previous string
        while at < end:
            like = known + found - first
            is_alike = is_alike and like < first
            if (
                is_alike
                and known_at >= 0
                and known_end - known_at == end - at
                and _is_same(data, at, data, known_at, end - at)
            ):
                found = _append_copies(like, first, found, name_ends, names)
                _append_copies(like, first, found - first + like, value_ends, values)
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
            # A pair without a name or a value does not count.
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
    """Find the value of a property in each string.

    Args:
        name: The name of the property.
        row_ends: From :func:`split_properties`.
        name_ends: The same.
        names: The same.
        value_ends: The same.
        alike: The same.
        begins: Receives the start of each value among the joined values; -1 if absent.
        ends: Receives the end of each value; -1 if absent.

    Returns:
        The number of strings with the property.
    """
    size = len(name)
    found = 0
    place = 0  # the index of the name in its string
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


def _append(data: Bytes, at: int, end: int, ends: Buffer, joined: Buffer, count: int) -> None:
    """Append a slice to the joined ones."""
    _copy(data, at, joined, ends[count], end - at)
    ends[count + 1] = ends[count] + end - at


def _append_copies(like: int, last: int, count: int, ends: Buffer, joined: Buffer) -> int:
    """Append copies of the joined slices from ``like`` up to ``last``.

    Returns:
        The new number of slices.
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
    """Replace one of the joined slices."""
    behind = ends[row + 1]
    shift = end - at - (behind - ends[row])
    _copy(joined, behind, joined, behind + shift, ends[count] - behind)
    _copy(data, at, joined, ends[row], end - at)
    for other in range(row, count):
        ends[other + 1] += shift


def _pair_of(
    data: Bytes, at: int, size: int, name_ends: Places, names: Bytes, first: int, found: int
) -> int:
    """Return the index of the pair with a name; ``found`` if there is none."""
    for row in range(first, found):
        begin = name_ends[row]
        if name_ends[row + 1] - begin == size and _is_same(data, at, names, begin, size):
            return row
    return found


def _find(data: Bytes, at: int, end: int, mark: int) -> int:
    """Return the index of a byte, or the end."""
    if at == end:  # as in _is_same
        place = end
    elif cython.compiled:
        found = cython.cast(cython.p_uchar, memchr(cython.address(data[at]), mark, end - at))
        place = end if found is cython.NULL else at + (found - cython.address(data[at]))
    else:
        place = at
        while place < end and data[place] != mark:
            place += 1
    return place


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
