from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families as parse

from rocketpost.server.metrics.exposition import (
    SLICE_SAMPLES,
    Family,
    Sample,
    Writer,
    counter,
    gauge,
    label_text,
    single,
)

COMMON = label_text({"cluster": "c"})


def text_of(*families: Family, series_max: int = 10_000, is_open: bool = False) -> str:
    writer = Writer(common=COMMON, series_max=series_max, is_open=is_open)
    return b"".join(writer.slices(families)).decode()


def test_a_counter_and_a_gauge() -> None:
    sent = counter("sent_total", "Messages sent.", [Sample(label_text({"topic": "T"}), 3)])
    assert text_of(sent, gauge("lag", "Lag.", single(1.5))) == (
        "# HELP sent_total Messages sent.\n"
        "# TYPE sent_total counter\n"
        'sent_total{cluster="c",topic="T"} 3\n'
        "# HELP lag Lag.\n"
        "# TYPE lag gauge\n"
        'lag{cluster="c"} 1.5\n'
    )


def test_a_family_without_samples_is_left_out() -> None:
    assert text_of(gauge("lag", "Lag.", [])) == ""


@given(value=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_label_value_is_read_back(value: str) -> None:
    family = gauge("lag", "Lag.", [Sample(label_text({"topic": value}), 1)])
    (found,) = parse(text_of(family))
    assert found.samples[0].labels == {"cluster": "c", "topic": value}


def test_the_open_format_is_valid() -> None:
    text = text_of(counter("sent_total", "Sent.", single(2)), is_open=True)
    (found,) = open_parser.text_string_to_metric_families(text)
    assert (found.name, found.type, found.samples[0].name) == ("sent", "counter", "sent_total")


@pytest.mark.parametrize("series", [9, 10, 11, 25])
def test_a_family_beyond_the_limit_says_how_much_is_left_out(series: int) -> None:
    writer = Writer(common=COMMON, series_max=10)
    samples = [Sample(label_text({"topic": str(number)}), 1) for number in range(series)]
    text = b"".join(writer.slices([gauge("lag", "Lag.", samples)])).decode()
    (found,) = parse(text)
    left_out = max(0, series - 10)
    assert writer.overflows == ({"lag": left_out} if left_out else {})
    named = [each for each in found.samples if "topic" in each.labels]
    assert len(named) == min(series, 10)
    assert [each.value for each in found.samples if each.labels.get("overflow")] == (
        [left_out] if left_out else []
    )


def test_a_large_family_is_written_in_slices() -> None:
    writer = Writer(common=COMMON, series_max=10_000)
    samples = [Sample(label_text({"topic": str(number)}), number) for number in range(1700)]
    slices = list(writer.slices([gauge("lag", "Lag.", samples)]))
    assert len(slices) == 4
    assert all(each.count(b"\n") <= SLICE_SAMPLES + 2 for each in slices)
    (found,) = parse(b"".join(slices).decode())
    assert sum(each.value for each in found.samples) == sum(range(1700))
