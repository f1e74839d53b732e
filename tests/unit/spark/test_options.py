"""Options act, or are refused by name."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from rocketpost.client import Credentials
from rocketpost.errors import ConfigError
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.options import (
    SourceOptions,
    describe_options,
    find_credentials,
    parse_options,
    with_credentials,
)
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.source.plan import QueueKey

BASE = {"nameserver": "127.0.0.1:9876", "TOPIC": "A, B"}


def test_names_are_case_insensitive() -> None:
    options = parse_options(
        SourceOptions, BASE | {"MAXOFFSETSPERTRIGGER": "7", "failondataloss": "false"}
    )
    assert options.topics == ["A", "B"]
    assert options.offsets_max == 7
    assert not options.fail_on_data_loss


def test_messages_and_offsets_per_trigger_are_the_same() -> None:
    assert parse_options(SourceOptions, BASE | {"maxMessagesPerTrigger": "7"}).offsets_max == 7
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger is given twice"):
        parse_options(
            SourceOptions, BASE | {"maxOffsetsPerTrigger": "7", "maxMessagesPerTrigger": "7"}
        )


def test_trap_options_with_lower_case_names_are_known() -> None:
    # What Spark hands over has lost its capitals once somebody copies it.
    given = CaseInsensitiveDict(BASE | {"maxOffsetsPerTrigger": "7"})
    assert parse_options(SourceOptions, given).offsets_max == 7
    assert parse_options(SourceOptions, dict(given)).offsets_max == 7


def test_assign_names_queues() -> None:
    values = {"nameServer": "x:1", "assign": '{"T": {"a": [0, 2]}}'}
    assert parse_options(SourceOptions, values).assigned == [
        QueueKey("T", "a", 0),
        QueueKey("T", "a", 2),
    ]


def test_earliest_and_latest_are_taken_in_any_case() -> None:
    options = parse_options(
        SourceOptions, BASE | {"startingOffsets": "EARLIEST", "endingOffsets": "Latest"}
    )
    assert (options.starting_offsets, options.ending_offsets) == ("earliest", "latest")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"topic": "T"}, "nameServer is required"),
        ({"nameServer": "x:1"}, "exactly one of topic, topicPattern and assign"),
        (BASE | {"topicPattern": "a"}, "exactly one"),
        (BASE | {"topics": "T"}, "no option 'topics'; did you mean topic"),
        (BASE | {"subscribe": "T"}, "no option 'subscribe'; did you mean topic"),
        (BASE | {"kafka.bootstrap.servers": "T"}, "did you mean nameServer"),
        (BASE | {"tags": "A"}, "no option 'tags'; did you mean subExpression"),
        (BASE | {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger=0 is too small"),
        (BASE | {"propertiesFormat": "json"}, "one of map, string, none"),
        (BASE | {"readFrom": "replica"}, "one of master, slave, any"),
        (BASE | {"metadataCacheTtlMs": "-1"}, "metadataCacheTtlMs=-1 is too small"),
        (BASE | {"startingOffsets": "{"}, "startingOffsets is not JSON"),
        (BASE | {"startingOffsets": '{"T":{"a":{"0":-3}}}'}, "-2 means earliest, -1 means latest"),
        (BASE | {"startingOffsets": "group"}, "needs the option group"),
        (BASE | {"commitOffsetsToBroker": "true"}, "needs the option group"),
        (BASE | {"maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is not a duration"),
        (BASE | {"maxTriggerDelay": "1m"}, "needs minOffsetsPerTrigger"),
        (BASE | {"maxClockStepMs": "1"}, "needs filterPushdown=once"),
        (BASE | {"startingOffsetsByTimestampStrategy": "error"}, "needs startingTimestamp or"),
        (BASE | {"endingOffsets": "earliest"}, "endingOffsets=earliest cannot be an end"),
        (BASE | {"endingOffsets": '{"T":{"a":{"0":-2}}}'}, "cannot be an end"),
        (
            BASE | {"startingOffsets": "earliest", "startingTimestamp": "5"},
            "only one of startingOffsets and startingTimestamp",
        ),
        (
            BASE | {"endingTimestamp": "5", "endingOffsetsByTimestamp": '{"T":{"a":{"0":5}}}'},
            "only one of endingTimestamp and endingOffsetsByTimestamp",
        ),
        (BASE | {"startingTimestamp": "6", "endingTimestamp": "5"}, "is later than"),
        (
            BASE
            | {
                "startingOffsets": '{"T":{"a":{"0":7}}}',
                "endingOffsets": '{"T":{"a":{"0":6}}}',
            },
            "endingOffsets=6 is before startingOffsets=7 for queue 0 of T on a",
        ),
        (BASE | {"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"}, "is more than"),
        ({"nameServer": "x:1", "topicPattern": "("}, "not a regular expression"),
        ({"nameServer": "x:1", "assign": '{"T": [0]}'}, "assign must look like"),
        ({"nameServer": "x:1", "assign": "{}"}, "names no queue"),
        ({"nameServer": "x:1", "topic": ", "}, "names no topic"),
    ],
)
def test_invalid_options_are_refused(values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options(SourceOptions, values)


@pytest.mark.parametrize("key", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
@pytest.mark.parametrize("ms", [-1, -2])
def test_trap_a_time_is_not_an_offset(key: str, ms: int) -> None:
    # With offsets, these mean latest and earliest.
    with pytest.raises(ConfigError, match=f"{key}: {ms} for queue 0 of T on a is not a time"):
        parse_options(SourceOptions, BASE | {key: f'{{"T":{{"a":{{"0":{ms}}}}}}}'})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("commitOffsetsToBroker", "true"),
        ("maxOffsetsPerTrigger", "5"),
        ("maxMessagesPerTrigger", "5"),
        ("minOffsetsPerTrigger", "5"),
        ("maxBytesPerTrigger", "5"),
    ],
)
def test_stream_options_are_refused_in_batches(key: str, value: str) -> None:
    options = parse_options(SourceOptions, BASE | {key: value, "group": "g"})
    options.check_stream()
    said = key.replace("Messages", "Offsets")
    with pytest.raises(ConfigError, match=f"{said} is for streams: a batch reads everything"):
        options.check_batch()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("endingTimestamp", "5"),
        ("endingOffsets", '{"T":{"a":{"0":5}}}'),
        ("endingOffsetsByTimestamp", '{"T":{"a":{"0":5}}}'),
        ("filterPushdown", "once"),
    ],
)
def test_batch_options_are_refused_in_streams(key: str, value: str) -> None:
    options = parse_options(SourceOptions, BASE | {key: value})
    options.check_batch()
    with pytest.raises(ConfigError, match=f"{key} is for batches"):
        options.check_stream()


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 H", 7200)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    options = parse_options(
        SourceOptions, BASE | {"maxTriggerDelay": text, "minOffsetsPerTrigger": "1"}
    )
    assert options.trigger_delay_seconds == seconds


def test_described_options_leave_out_defaults() -> None:
    assert (
        describe_options(parse_options(SourceOptions, BASE))
        == "nameServer=127.0.0.1:9876, topic=A, B"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "path is required"),
        ({"path": "/x", "view": "all"}, "view='all' must be one of consumer, log"),
        ({"path": "/x", "onCorrupt": "pass"}, "onCorrupt"),
        ({"path": "/x", "splitBytes": "5"}, "too small"),
        ({"path": "/x", "maxClockStepMs": "5"}, "maxClockStepMs needs startingTimestamp, "),
        ({"path": "/x", "topic": " , "}, "topic=',' names nothing"),
        ({"path": "/x", "keys": "  "}, "keys is empty; give it a value, or leave it out"),
        ({"path": "/x", "uniqKey": ""}, "uniqKey is empty"),
        ({"path": "/x", "startingTimestamp": "6", "endingTimestamp": "5"}, "is later than"),
        ({"path": "/x", "tag": "A"}, "no option 'tag'; did you mean tags"),
    ],
)
def test_the_logs_options_are_checked(values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options(LogOptions, values)


@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
def test_keys_are_taken_and_never_shown(
    kind: type[SourceOptions] | type[SinkOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    keys = {"accessKey": "User17", "secretKey": "hush", "securityToken": "psst"}
    options = parse_options(kind, BASE | keys)
    assert find_credentials(options) == Credentials("User17", "hush", "psst")
    for text in (repr(options), str(options), describe_options(options)):
        assert not [key for key in keys.values() if key in text]
    with pytest.raises(ConfigError, match="a secret key is missing") as raised:
        parse_options(kind, BASE | {"accessKey": "me"})
    assert "me" not in str(raised.value).split()
    assert find_credentials(parse_options(kind, BASE)) is None


def test_keys_of_the_environment_travel_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "me")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "hush")
    options = with_credentials(parse_options(SourceOptions, BASE))
    monkeypatch.delenv("ROCKETMQ_ACCESS_KEY")
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
    assert find_credentials(options) == Credentials("me", "hush")
    assert with_credentials(parse_options(SourceOptions, BASE)) == parse_options(
        SourceOptions, BASE
    )
