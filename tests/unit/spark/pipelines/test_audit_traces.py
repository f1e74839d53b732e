from __future__ import annotations

from rocketpost.codec.trace import EndTransaction, Pub, SubAfter, SubBefore, encode_traces
from rocketpost.spark.pipelines.audit_traces import fields_of


def test_records_become_rows_and_what_is_none_is_left_out() -> None:
    common = {"time_ms": 5, "region": "r", "group": "g"}
    text = encode_traces(
        [
            Pub(**common, topic="T", message_id="A", keys="k", cost_ms=3),  # type: ignore[arg-type]
            EndTransaction(**common, topic="T", message_id="A"),  # type: ignore[arg-type]
            SubBefore(**common, request_id="q", message_id="A"),  # type: ignore[arg-type]
            SubAfter(request_id="q", message_id="A", cost_ms=7, success=False, time_ms=9),
        ]
    )
    assert fields_of(b"nonsense\x02" + text.encode()) == [
        ("Pub", 5, "g", "T", "A", "k", 3, True, ""),
        ("SubBefore", 5, "g", "", "A", "", 0, True, "q"),
        ("SubAfter", 9, "", "", "A", "", 7, False, "q"),
    ]
    assert fields_of(None) == []
