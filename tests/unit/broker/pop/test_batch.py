"""Batches in RocketMQ's form, read and written."""

from __future__ import annotations

import pytest

from rocketpost.broker.pop.batch import Batch, Batches, batch_of
from rocketpost.broker.pop.targets import Cursor
from rocketpost.codec.bodies.pop_order import OrderInfo
from rocketpost.errors import StoreError

JAVA = (
    b'{\n\t"table":{"T@g":{0:{"a":"x","cm":2,"i":60000,"l":1700,"o":[10,1,3],'
    b'"oc":{10:2},"ot":{13:99},"popTime":1600}}}}'
)


def test_rocketmqs_table_is_read_and_written_unchanged() -> None:
    batches = Batches()
    batches.load(JAVA)
    [(cursor, batch)] = batches
    assert cursor == Cursor("T", "g", 0)
    assert batch.offsets == [10, 11, 13]
    assert batch.acked == {11}
    assert batch.left == [10, 13]
    assert batch.next_offset == 10
    assert batch.counts == {10: 2}
    assert batch.blocked_until_ms == 61_600
    assert batch.attempt_id == "x"
    assert batches.to_json() == JAVA.replace(b"\n\t", b"")


def test_sixty_four_bits_are_javas_long() -> None:
    batch = Batch(list(range(64)), pop_ms=1, invisible_ms=1)
    batch.acked = {63}
    info = batch.to_info()
    assert info.cm == -(2**63)
    again = batch_of(info)
    assert again is not None
    assert again.acked == {63}


@pytest.mark.parametrize("offsets", [[], [5, -1], [5, 1, 1], list(range(1, 67))])
def test_an_invalid_batch_is_refused(offsets: list[int]) -> None:
    assert batch_of(OrderInfo(o=offsets)) is None


def test_a_damaged_file_is_refused_and_invalid_rows_are_dropped() -> None:
    batches = Batches()
    with pytest.raises(StoreError):
        batches.load(b"[]")
    batches.load(b'{"table":{"T":{0:{"o":[1]}},"T@g":{1:{"o":[]}}}}')
    assert len(batches) == 0


def test_a_batch_is_current_while_the_group_is_at_its_offset() -> None:
    batches, cursor = Batches(), Cursor("T", "g", 0)
    batch = Batch([3, 4], pop_ms=1, invisible_ms=1)
    batches.put(cursor, batch)
    assert batches.find(cursor, 3) is batch
    assert batches.find(cursor, 4) is None
    batch.acked.add(3)
    assert batches.find(cursor, 4) is batch
    batch.acked.add(4)
    assert batch.is_over
    batch.ahead = {5, 7}
    assert batch.next_offset == 6
    assert not batch.is_over
    batches.put(cursor, None)
    assert batches.newest(cursor) is None
