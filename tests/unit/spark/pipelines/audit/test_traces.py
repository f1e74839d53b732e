from __future__ import annotations

from typing import Any

from rocketpost.codec.trace import (
    EndTransactionTrace,
    MessageKind,
    Pub,
    RecallTrace,
    SubAfter,
    SubBefore,
    encode_traces,
)
from rocketpost.spark.pipelines.audit.traces import list_fields


def test_records_become_rows_and_other_bytes_are_skipped() -> None:
    common: dict[str, Any] = {"time_ms": 5, "region": "r", "group": "g"}
    text = encode_traces(
        [
            Pub(**common, topic="T", message_id="A", keys="k", cost_ms=3),
            Pub(**common, topic="T", message_id="B", kind=MessageKind.TRANSACTION_HALF),
            EndTransactionTrace(**common, topic="T", message_id="B", state="COMMIT_MESSAGE"),
            EndTransactionTrace(**common, topic="T", message_id="C", state="ROLLBACK_MESSAGE"),
            RecallTrace(**common, topic="T", message_id="D"),
            SubBefore(**common, request_id="q", message_id="A"),
            SubAfter(request_id="q", message_id="A", cost_ms=7, success=False, time_ms=9),
        ]
    )
    assert list_fields(b"nonsense\x02" + text.encode()) == [
        ("Pub", 5, "g", "T", "A", "k", 3, True, "", False),
        ("Pub", 5, "g", "T", "B", "", 0, True, "", True),
        ("EndTransaction", 5, "g", "T", "B", "", 0, True, "", False),
        ("EndTransaction", 5, "g", "T", "C", "", 0, False, "", False),
        ("Recall", 5, "g", "T", "D", "", 0, True, "", False),
        ("SubBefore", 5, "g", "", "A", "", 0, True, "q", False),
        ("SubAfter", 9, "", "", "A", "", 7, False, "q", False),
    ]
    assert list_fields(None) == []
