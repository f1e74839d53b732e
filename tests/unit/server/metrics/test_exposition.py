from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families as parse

from rocketpost.model.histogram import Histogram
from rocketpost.server.metrics import exposition
from rocketpost.server.metrics.exposition import (
    SLICE_SAMPLES,
    Column,
    Family,
    Labels,
    Sample,
    Writer,
    counter,
    gauge,
    histogram,
    label_text,
    pause,
    read_label_text,
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


@pytest.mark.parametrize("series", [0, 1, SLICE_SAMPLES, SLICE_SAMPLES + 1, 1200])
@pytest.mark.parametrize("series_max", [700, 5000])
def test_a_column_is_written_as_its_samples_are(series: int, series_max: int) -> None:
    labels = [label_text({"topic": f"T{number}"}) for number in range(series)]
    column = Column(labels, range(series))
    family = counter("sent_total", "Messages sent.", column)
    one_by_one = family._replace(samples=list(column))
    assert text_of(family, series_max=series_max) == text_of(one_by_one, series_max=series_max)
    writer = Writer(common=COMMON, series_max=series_max)
    parts = list(writer.slices([family]))
    assert max(part.count(b"\n") for part in parts) <= SLICE_SAMPLES + 2
    rest = max(0, series - series_max)
    assert writer.overflows == ({"sent_total": rest} if rest else {})


def sizes(*values: float) -> Histogram:
    found = Histogram((10, 100))
    for value in values:
        found.add(value)
    return found


def test_a_histogram_has_buckets_sum_and_count() -> None:
    labels = label_text({"topic": "T"})
    family = histogram("size", "Sizes.", [(labels, sizes(1, 50, 60, 900))], bounds=(10, 100))
    text = text_of(family)
    assert text == (
        "# HELP size Sizes.\n"
        "# TYPE size histogram\n"
        'size_bucket{cluster="c",topic="T",le="10.0"} 1\n'
        'size_bucket{cluster="c",topic="T",le="100.0"} 3\n'
        'size_bucket{cluster="c",topic="T",le="+Inf"} 4\n'
        'size_sum{cluster="c",topic="T"} 1011\n'
        'size_count{cluster="c",topic="T"} 4\n'
    )
    (found,) = parse(text)
    assert (found.name, found.type, len(found.samples)) == ("size", "histogram", 5)


def test_a_histogram_is_valid_in_the_open_format() -> None:
    family = histogram("size", "Sizes.", [("", sizes(1, 50))], bounds=(10, 100))
    (found,) = open_parser.text_string_to_metric_families(text_of(family, is_open=True))
    assert (found.type, found.samples[-1].value) == ("histogram", 2)


def test_a_histogram_is_never_cut_in_the_middle() -> None:
    writer = Writer(common=COMMON, series_max=2)
    found = [(label_text({"topic": str(number)}), sizes(1)) for number in range(5)]
    text = b"".join(writer.slices([histogram("size", "Sizes.", found, bounds=(10, 100))]))
    assert text.count(b"_count{") == 2
    assert text.count(b"_bucket{") == 6
    assert writer.overflows == {"size": 3}


def test_a_pause_writes_nothing_and_lets_the_loop_continue() -> None:
    writer = Writer(common=COMMON, series_max=10)
    assert list(writer.slices([pause()])) == [b""]


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        max_size=4,
    )
)
def test_a_label_text_is_read_back(labels: dict[str, str]) -> None:
    assert read_label_text(label_text(labels)) == labels


def test_labels_are_made_once_and_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "LABELS_MAX", 3)
    labels = Labels("topic", "group")
    assert labels("T", "G") == 'topic="T",group="G"'
    assert labels("T", "G") is labels("T", "G")
    for number in range(10):
        labels(str(number), "G")
        assert len(labels._texts) <= 3
