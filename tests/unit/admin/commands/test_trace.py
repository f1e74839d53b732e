from __future__ import annotations

from admin.samples import make_message
from rocketpost.admin.commands.trace import Step, build_timeline, timeline_text
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.trace import (
    EndTransactionTrace,
    Pub,
    RecallTrace,
    SubAfter,
    SubBefore,
    Trace,
    TraceOutcome,
    encode_traces,
)

PUB = Pub(
    time_ms=1000, region="R", group="shop", topic="T", message_id="M", tags="A", keys="k",
    store_host="h:1", body_bytes=5, cost_ms=7, kind=4, offset_id="O",
)  # fmt: skip


def before(request: str, time_ms: int, **more: int) -> SubBefore:
    return SubBefore(
        time_ms=time_ms, region="R", group="bill", request_id=request, message_id="M",
        retry_times=more.get("retry", 0),
    )  # fmt: skip


def after(request: str, *, success: bool = True, outcome: int = 0, time_ms: int = 0) -> SubAfter:
    return SubAfter(
        request_id=request, message_id="M", cost_ms=30, success=success, outcome=outcome,
        time_ms=time_ms, group="bill",
    )  # fmt: skip


def written(*traces: Trace) -> ReceivedMessage:
    return make_message(encode_traces(traces).encode())


def test_the_steps_of_a_message_are_shown_in_order() -> None:
    failed = after("q1", success=False, outcome=TraceOutcome.EXCEPTION)
    messages = [
        written(after("q2"), before("q2", 9000, retry=1)),
        written(PUB, before("q1", 2000), failed, before("q3", 9500)),
        written(PUB),  # sent twice
    ]
    steps = build_timeline(messages, "M")
    assert [(each.time_ms, each.what, each.outcome, each.took_ms) for each in steps] == [
        (1000, "Pub", "success", 7),
        (2000, "Sub", "exception", 30),
        (9000, "Sub", "success", 30),
        (9500, "Sub", "not finished", None),
    ]
    assert steps[0].detail == "T, on h:1, 5 bytes, ordered, tags A, keys k"
    assert steps[2].detail == "retry 1"
    assert {each.client for each in steps} == {"127.0.0.1"}


def test_traces_of_other_messages_in_the_same_batch_are_left_out() -> None:
    assert build_timeline([written(PUB, before("q", 5))], "N") == []


def test_an_end_without_its_beginning_counts_back() -> None:
    [step] = build_timeline([written(after("q", time_ms=1030))], "M")
    assert (step.time_ms, step.group) == (1000, "bill")
    [odd] = build_timeline([written(after("q", success=False, outcome=77))], "M")
    assert (odd.time_ms, odd.outcome) == (0, "code 77")


def test_decisions_and_recalls_are_shown() -> None:
    end = EndTransactionTrace(
        time_ms=1, region="R", group="G", topic="T", message_id="M", state="COMMIT_MESSAGE",
        from_check=True,
    )  # fmt: skip
    recall = RecallTrace(time_ms=2, region="R", group="G", topic="T", message_id="M", success=False)
    steps = build_timeline([written(end, recall)], "M")
    assert [(each.what, each.outcome, each.detail) for each in steps] == [
        ("EndTransaction", "COMMIT_MESSAGE", "asked by the broker"),
        ("Recall", "failed", ""),
    ]


def test_the_table_shows_a_line_per_step(utc: None) -> None:
    steps = build_timeline([written(PUB, before("q1", 2000), after("q1"))], "M")
    unknown = Step(
        time_ms=0, what="Sub", group="[g]", client="c", took_ms=None, outcome="x", detail=""
    )
    head, pub, sub, last = timeline_text([*steps, unknown]).splitlines()
    assert head.split() == [
        "#Time", "#What", "#Group", "#ClientHost", "#CostTimes", "#Status", "#Detail",
    ]  # fmt: skip
    assert pub.split()[:6] == ["1970-01-01", "00:00:01,000", "Pub", "shop", "127.0.0.1", "7ms"]
    assert sub.split()[2:] == ["Sub", "bill", "127.0.0.1", "30ms", "success"]
    assert last.split() == ["unknown", "Sub", "[g]", "c", "x"]
