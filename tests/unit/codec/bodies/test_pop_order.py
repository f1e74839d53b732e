from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies.pop_order import (
    OrderInfo,
    OrderRecord,
    decode_order_record,
    decode_order_table,
    encode_order_info,
    encode_order_record,
    encode_order_table,
)
from rocketpost.errors import RemoteProtocolError

NUMBERS = st.integers(0, 2**40)
INFOS = st.builds(
    OrderInfo,
    a=st.none() | st.text(max_size=5),
    cm=st.integers(-(2**63), 2**63 - 1),
    i=NUMBERS,
    l=NUMBERS,
    o=st.lists(NUMBERS, max_size=4),
    oc=st.dictionaries(NUMBERS, NUMBERS, max_size=3),
    ot=st.dictionaries(NUMBERS, NUMBERS, max_size=3),
    pop_time=NUMBERS,
)


@given(info=INFOS, ahead=st.lists(NUMBERS, max_size=3))
def test_written_records_are_read_back(info: OrderInfo, ahead: list[int]) -> None:
    record = OrderRecord(bn="b", c="g", info=info, n=7, q=3, t="T", x=ahead)
    assert decode_order_record(encode_order_record(record)) == record
    table = decode_order_table(encode_order_table([("T@g", {3: info})]))
    assert table.table == {"T@g": {3: info}}


def test_the_text_is_javas() -> None:
    info = OrderInfo(cm=1, i=60000, l=5, o=[10, 2], oc={10: 1}, ot={12: 9}, pop_time=4)
    text = b'{"cm":1,"i":60000,"l":5,"o":[10,2],"oc":{10:1},"ot":{12:9},"popTime":4}'
    assert encode_order_info(info) == text
    assert encode_order_info(OrderInfo(a="x")) == (
        b'{"a":"x","cm":0,"i":0,"l":0,"o":[],"popTime":0}'
    )


@pytest.mark.parametrize("body", [b"", b"[]", b'{"t":"T"}'])
def test_invalid_records_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_order_record(body)
