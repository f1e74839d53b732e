"""The loops that split property strings, each by itself."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from types import ModuleType

from hypothesis import example, given
from hypothesis import strategies as st

from rocketpost.codec.properties import decode_properties

odd_text = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"TAGS", b"a", b"b", b"\xc3\xa4"]), max_size=12
).map(b"".join)
alike_text = st.lists(
    st.sampled_from(
        [
            b"a\x01b\x02",
            b"a\x01bb\x02",
            b"TAGS\x01b\x02",
            b"\x02",
            b"b\x02",
            b"a\x01\x02",
            b"a\x01b",
        ]
    ),
    max_size=6,
).map(b"".join)


def longs(*values: int) -> memoryview:
    return memoryview(array("q", values))


def room(kind: str, count: int) -> memoryview:
    return memoryview(array(kind, bytes(array(kind).itemsize * count)))


@given(st.lists(odd_text | alike_text, max_size=8))
@example([b"a\x01b\x02c\x01d\x02", b"a\x01x\x02c\x01d\x02", b"c\x01d\x02"])
@example([b"a\x01b\x02c\x01d\x02", b"a\x01\x02c\x01d\x02"])
@example([b"a\x01b\x02\x02c\x01d", b"a\x01x\x02\x02c\x01d", b"a\x01b\x02c\x01d"])
@example([b"a\x01b\x02c\x01d\x02a\x01long\x02", b"a\x01b\x02c\x01d\x02a\x01long\x02"])
def test_properties_are_split_as_by_the_plain_decoder(
    kernel: ModuleType, texts: list[bytes]
) -> None:
    data = memoryview(b"".join(texts))
    places = [0, *accumulate(map(len, texts))]
    row_ends = room("i", len(texts) + 1)
    name_ends, value_ends = room("i", len(data) // 3 + 1), room("i", len(data) // 3 + 1)
    names, values = room("B", len(data)), room("B", len(data))
    begins, ends = longs(*places[:-1]), longs(*places[1:])
    alike = room("B", len(texts))
    count = kernel.split_properties(
        data, begins, ends, row_ends, name_ends, names, value_ends, values, alike
    )
    every = list(zip(cut(names, name_ends, count), cut(values, value_ends, count), strict=True))
    expected = [list(decode_properties(text).items()) for text in texts]
    assert [every[a:b] for a, b in pairwise(row_ends.tolist())] == expected
    order = [[name for name, _ in pairs] for pairs in expected]
    assert all(order[i] == order[i - 1] for i in range(1, len(texts)) if alike[i])
    for name in ("TAGS", "a", "c"):
        begins, ends = room("q", len(texts)), room("q", len(texts))
        found = kernel.find_values(
            name.encode(), row_ends, name_ends, names, value_ends, alike, begins, ends
        )
        wanted = [dict(pairs).get(name) for pairs in expected]
        assert found == len(wanted) - wanted.count(None)
        assert [
            None if a < 0 else bytes(values[a:b]).decode()
            for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
        ] == wanted


def cut(joined: memoryview, ends: memoryview, count: int) -> list[str]:
    return [bytes(joined[a:b]).decode() for a, b in pairwise(ends.tolist()[: count + 1])]
