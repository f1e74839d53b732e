from __future__ import annotations

import pytest

from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.testing.ledger import Ledger, PromiseBroken

HOST = pack_host("127.0.0.1", 1)


def body_of(number: int) -> bytes:
    return b"body %d" % number


def noted(*numbers: int, stream: int = 1) -> Ledger:
    """Return a ledger of messages that were sent to queue 0 of topic t."""
    ledger = Ledger()
    for number in numbers:
        ledger.note(
            number,
            topic="t",
            queue_id=0,
            stream=stream,
            body=body_of(number),
            properties={"NUMBER": str(number), "color": "red"},
        )
    return ledger


def record(number: int, offset: int, *, body: bytes | None = None, color: str = "red") -> Record:
    properties = {"NUMBER": str(number), "color": color, "CLUSTER": "added by the broker"}
    return Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=offset,
        position=0,
        sys_flag=0,
        born_ms=0,
        born_host_bytes=HOST,
        store_ms=0,
        store_host_bytes=HOST,
        reconsume_times=0,
        prepared_position=0,
        body=body_of(number) if body is None else body,
        topic="t",
        properties_bytes=encode_properties(properties),
    )


def test_a_kept_promise() -> None:
    ledger = noted(1, 2, 3)
    ledger.acknowledge(1, 0)
    ledger.acknowledge(3, 2)
    ledger.check_queue("t", 0, [record(1, 0), record(2, 1), record(3, 2)], first=0)
    ledger.check_lost()
    ledger.verify()
    assert ledger.expected_end("t", 0) == 3
    assert ledger.counts.acknowledged == 2


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([], "acknowledged message 1 is lost"),
        ([record(1, 0), record(2, 2)], "has holes: 2 follows 0"),
        ([record(1, 0, body=b"other")], "body of message 1 was altered"),
        ([record(1, 0, color="blue")], "message 1 lost properties"),
        ([record(2, 0), record(1, 1)], "t/0@0 meant message 1, now 2 is seen there"),
        ([record(1, 0), record(1, 1)], "message 1 is at t/0@0 and at t/0@1"),
        ([record(1, 0), record(9, 1)], "nobody sent the message at t/0@1"),
        ([record(1, 0), record(3, 1)], "lacks [2] before 3"),
        ([record(1, 0), record(3, 1), record(2, 2)], "stream 1 is out of order"),
    ],
)
def test_broken_promises(records: list[Record], complaint: str) -> None:
    ledger = noted(1, 2, 3)
    ledger.acknowledge(1, 0)
    ledger.check_queue("t", 0, records, first=0)
    with pytest.raises(PromiseBroken) as caught:
        ledger.verify()
    assert complaint in str(caught.value)


def test_messages_that_were_seen_must_not_vanish() -> None:
    ledger = noted(1, 2)
    ledger.see(record(1, 0))
    ledger.see(record(2, 1))
    ledger.check_queue("t", 0, [record(1, 0)], first=0)
    with pytest.raises(PromiseBroken, match="a reader saw t/0@1, now the queue ends at 1"):
        ledger.verify()


def test_a_refused_message_may_be_missing() -> None:
    ledger = noted(1, 2, 3)
    ledger.refuse(2)
    ledger.check_queue("t", 0, [record(1, 0), record(3, 1)], first=0)
    ledger.verify()


def test_a_deletion_that_was_acknowledged_is_final() -> None:
    ledger = noted(1)
    ledger.acknowledge(1, 0)
    ledger.begin_delete("t")
    ledger.end_delete("t")
    ledger.check_absent("t")
    ledger.verify()
    ledger.see(record(1, 0))
    with pytest.raises(PromiseBroken, match="message 1 of a deleted topic came back"):
        ledger.verify()


def test_a_deletion_under_way_is_done_or_undone() -> None:
    ledger = noted(1, 2)
    ledger.acknowledge(1, 0)
    ledger.acknowledge(2, 1)
    ledger.begin_delete("t")
    ledger.settle_delete("t", [1, 2])
    ledger.verify()
    ledger.begin_delete("t")
    ledger.settle_delete("t", [2])
    with pytest.raises(PromiseBroken, match="half undone: 1 are back, 1 are not"):
        ledger.verify()


def test_a_copy_owes_acknowledged_messages_only() -> None:
    ledger = noted(1, 2, 3)
    ledger.acknowledge(1, 0)
    for number in (1, 2, 3):
        ledger.see(record(number, number - 1))
    assert ledger.expected_end("t", 0) == 3
    ledger.forget_unacknowledged()
    assert ledger.expected_end("t", 0) == 1
    ledger.check_queue("t", 0, [record(1, 0), record(2, 1)], first=0)
    ledger.verify()
    ledger.check_queue("t", 0, [], first=0)
    with pytest.raises(PromiseBroken, match="acknowledged message 1 is lost"):
        ledger.verify()
