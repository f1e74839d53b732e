"""Traces are the text that Java's tools write and read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.trace import (
    EndTransactionTrace,
    MessageKind,
    Pub,
    RecallTrace,
    SubAfter,
    SubBefore,
    Trace,
    TraceOutcome,
    decode_traces,
    encode_trace,
    encode_traces,
)

PUB = Pub(
    time_ms=1, region="R", group="G", topic="T", message_id="M", tags="A", keys="k1 k2",
    store_host="10.0.0.1:10911", body_bytes=5, cost_ms=7, kind=MessageKind.DELAYED,
    offset_id="O", success=True,
)  # fmt: skip
BEFORE = SubBefore(time_ms=1, region="R", group="G", request_id="Q", message_id="M", keys="k")
AFTER = SubAfter(
    request_id="Q", message_id="M", cost_ms=3, success=False, keys="k",
    outcome=TraceOutcome.EXCEPTION, time_ms=9, group="G",
)  # fmt: skip
END = EndTransactionTrace(
    time_ms=1, region="R", group="G", topic="T", message_id="M", transaction_id="X",
    state="COMMIT_MESSAGE", from_check=True,
)  # fmt: skip
RECALL = RecallTrace(time_ms=1, region="R", group="G", topic="T", message_id="M", success=False)


def test_the_fields_stand_where_java_looks_for_them() -> None:
    text = [encode_trace(each).replace("\x01", "|") for each in (PUB, BEFORE, AFTER, END, RECALL)]
    assert text == [
        "Pub|1|R|G|T|M|A|k1 k2|10.0.0.1:10911|5|7|3|O|true\x02",
        "SubBefore|1|R|G|Q|M|0|k\x02",
        "SubAfter|Q|M|3|false|k|2|9|G\x02",
        "EndTransaction|1|R|G|T|M|null|null|null|2|X|COMMIT_MESSAGE|true\x02",
        "Recall|1|R|G|T|M|false\x02",
    ]


def test_old_and_odd_records_are_read() -> None:
    fields = encode_trace(PUB)[:-1].split("\x01")
    [short] = decode_traces("\x01".join([*fields[:12], "false"]))
    assert isinstance(short, Pub)
    assert (short.offset_id, short.success) == ("", False)
    [long] = decode_traces("\x01".join([*fields, "10.0.0.9"]))
    assert isinstance(long, Pub)
    assert (long.offset_id, long.success, long.client_host) == ("O", True, "10.0.0.9")
    assert decode_traces("SubAfter\x01Q\x01M\x013\x01false") == [
        SubAfter(
            request_id="Q", message_id="M", cost_ms=3, success=False, outcome=TraceOutcome.FAILED
        )
    ]
    [cloud] = decode_traces("SubAfter\x01Q\x01M\x013\x01true\x01k\x010\x01\x02")
    assert isinstance(cloud, SubAfter)
    assert (cloud.outcome, cloud.time_ms, cloud.group) == (0, 0, "")
    [keyless] = decode_traces("SubBefore\x011\x01R\x01G\x01Q\x01M\x010")
    assert isinstance(keyless, SubBefore)
    assert keyless.keys == ""


def test_a_record_that_cannot_be_read_hides_no_other() -> None:
    odd = "Pub\x01one\x02Pub\x01x\x01R\x02Dance\x011\x02\x02"
    assert decode_traces(odd + encode_traces([BEFORE]) + "Recall") == [BEFORE]
    assert decode_traces("") == []


texts = st.text(st.characters(exclude_characters="\x01\x02"), max_size=8).filter(
    lambda text: text != "null"
)
numbers = st.integers(0, 2**53)
traces: st.SearchStrategy[Trace] = st.one_of(
    st.builds(
        Pub, time_ms=numbers, region=texts, group=texts, topic=texts, message_id=texts,
        tags=texts, keys=texts, store_host=texts, body_bytes=numbers, cost_ms=numbers,
        kind=st.sampled_from(MessageKind).map(int), offset_id=texts, success=st.booleans(),
    ),
    st.builds(
        SubBefore, time_ms=numbers, region=texts, group=texts, request_id=texts,
        message_id=texts, retry_times=numbers, keys=texts,
    ),
    st.builds(
        SubAfter, request_id=texts, message_id=texts, cost_ms=numbers, success=st.booleans(),
        keys=texts, outcome=st.sampled_from(TraceOutcome).map(int), time_ms=numbers, group=texts,
    ),
    st.builds(
        EndTransactionTrace, time_ms=numbers, region=texts, group=texts, topic=texts,
        message_id=texts, tags=texts, keys=texts, store_host=texts,
        kind=st.sampled_from(MessageKind).map(int), transaction_id=texts, state=texts,
        from_check=st.booleans(),
    ),
    st.builds(
        RecallTrace, time_ms=numbers, region=texts, group=texts, topic=texts, message_id=texts,
        success=st.booleans(),
    ),
)  # fmt: skip


@given(st.lists(traces, max_size=4))
def test_written_traces_are_read_back(written: list[Trace]) -> None:
    assert decode_traces(encode_traces(written)) == written


@given(st.text(max_size=60))
def test_any_text_is_read_somehow(text: str) -> None:
    decode_traces(text.replace("|", "\x01"))


def test_separators_inside_a_value_do_no_harm() -> None:
    odd = RecallTrace(time_ms=1, region="a\x01b", group="c\x02d", topic="T", message_id="M")
    [read] = decode_traces(encode_trace(odd))
    assert isinstance(read, RecallTrace)
    assert (read.region, read.group) == ("a b", "c d")
