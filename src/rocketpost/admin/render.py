"""Text of values as RocketMQ's tools print them, so that scripts for those keep working. Pure.

Tables have RocketMQ's column widths. Unlike RocketMQ's, headings and rows have the same widths, and
rows are sorted. Times are local.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rocketpost.model.group import GroupConfig
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig, perm_text

NOT_AVAILABLE: Final = "N/A"


class Column(NamedTuple):
    """One column: its heading, its name in JSON, and the function that formats its values."""

    title: str
    key: str
    show: Callable[[Any], object] = str


class Table:
    """A table as text with headings, or as a list of objects for programs.

    Args:
        layout: One ``%`` conversion per column, as in RocketMQ's source: ``%-32s  %-4s``.
        columns: The columns.
    """

    def __init__(self, layout: str, columns: Sequence[Column]) -> None:
        assert layout.count("%") == len(columns)
        self._layout = layout
        self._columns = columns

    def heading(self) -> str:
        """Return the line of headings."""
        return self._layout % tuple(column.title for column in self._columns)

    def cells(self, row: Sequence[object]) -> list[str]:
        """Return the values of one row as text."""
        return [str(column.show(value)) for column, value in zip(self._columns, row, strict=True)]

    def line(self, row: Sequence[object]) -> str:
        """Return the line of one row."""
        return self._layout % tuple(self.cells(row))

    def text(self, rows: Iterable[Sequence[object]]) -> str:
        """Return the lines of headings and rows."""
        return "\n".join([self.heading(), *map(self.line, rows)])

    def objects(self, rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
        """Return the rows as objects with unformatted values."""
        keys = [column.key for column in self._columns]
        return [dict(zip(keys, row, strict=True)) for row in rows]


# Times.


def time_text(ms: int) -> str:
    """Return a time as ``2026-01-31 23:59:59``."""
    return _local(ms).strftime("%Y-%m-%d %H:%M:%S")


def time_text_ms(ms: int) -> str:
    """Return a time as ``2026-01-31 23:59:59,123``."""
    return f"{time_text(ms)},{ms % 1000:03d}"


def time_or(ms: int, otherwise: str, *, millis: bool = False) -> str:
    """Return a time, or ``otherwise`` if there is none."""
    if ms <= 0:
        return otherwise
    return time_text_ms(ms) if millis else time_text(ms)


def parse_time(text: str, *, now_ms: int) -> int:
    """Parse a time as RocketMQ's tools do: ``now``, milliseconds, or a date.

    Raises:
        ValueError: The text is none of these.
    """
    word = text.strip()
    if word.lower() in ("now", "currenttimemillis"):
        return now_ms
    if re.fullmatch(r"-?[0-9]+", word):
        return int(word)
    for form in ("%Y-%m-%d#%H:%M:%S:%f", "%Y-%m-%d#%H:%M:%S", "%Y-%m-%d"):
        try:
            parsed = datetime.datetime.strptime(word, form)
        except ValueError:
            continue
        return round(parsed.timestamp() * 1000)
    raise ValueError(
        f"{text!r} is not a time: it takes now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS"
    )


def _local(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms // 1000).astimezone()


# Objects as Java prints them.


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as Java prints it."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def topic_text(config: TopicConfig) -> str:
    """Return a topic's configuration as Java prints it."""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={flag_text(config.order)}, attributes={map_text(config.attributes)}]"
    )


def group_text(config: GroupConfig) -> str:
    """Return a group's configuration as Java prints it."""
    fields = ", ".join(f"{name}={value}" for name, value in group_fields(config))
    return f"SubscriptionGroupConfig{{{fields}}}"


def group_fields(config: GroupConfig) -> list[tuple[str, str]]:
    """Return the members of a group's configuration as Java names, orders and prints them."""
    return [
        ("groupName", config.group_name),
        ("consumeEnable", flag_text(config.consume_enable)),
        ("consumeFromMinEnable", flag_text(config.consume_from_min_enable)),
        ("consumeBroadcastEnable", flag_text(config.consume_broadcast_enable)),
        ("consumeMessageOrderly", flag_text(config.consume_message_orderly)),
        ("retryQueueNums", str(config.retry_queue_nums)),
        ("retryMaxTimes", str(config.retry_max_times)),
        ("groupRetryPolicy", _retry_policy(config.group_retry_policy)),
        ("brokerId", str(config.broker_id)),
        ("whichBrokerWhenConsumeSlowly", str(config.which_broker_when_consume_slowly)),
        ("notifyConsumerIdsChangedEnable", flag_text(config.notify_consumer_ids_changed_enable)),
        ("groupSysFlag", str(config.group_sys_flag)),
        ("consumeTimeoutMinute", str(config.consume_timeout_minute)),
        ("subscriptionDataSet", "null"),
        ("attributes", map_text(config.attributes)),
    ]


def _retry_policy(policy: Mapping[str, Any]) -> str:
    parts = [
        f"{name}={_compact(policy[name]) if policy.get(name) is not None else 'null'}"
        for name in ("exponentialRetryPolicy", "customizedRetryPolicy")
    ]
    return f"GroupRetryPolicy{{type={policy.get('type', 'CUSTOMIZED')}, {', '.join(parts)}}}"


def settings_text(title: str, values: Mapping[str, str]) -> str:
    """Return the settings of a server below a title, sorted by key."""
    lines = [f"{key:<50}=  {values[key]}" for key in sorted(values)]
    return "\n".join([f"============{title}============", *lines])


def map_text(values: Mapping[Any, object]) -> str:
    """Return a map as Java prints it: ``{a=1, b=2}``."""
    return "{" + ", ".join(f"{key}={value}" for key, value in values.items()) + "}"


def flag_text(value: bool) -> str:
    """Return ``true`` or ``false``."""
    return "true" if value else "false"


# JSON.


def json_text(value: object) -> str:
    """Return standard JSON, indented by two spaces."""
    plain = msgspec.to_builtins(value, str_keys=True)
    return json.dumps(plain, indent=2, ensure_ascii=False)


def json_line(value: object) -> str:
    """Return standard JSON in one line."""
    return json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=False)


def plain_value(text: str) -> object:
    """Return the number or boolean that a text represents, or else the text."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?(0|[1-9][0-9]*)", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]+\.[0-9]+([eE]-?[0-9]+)?", text):
        return float(text)
    return text


def fastjson_text(value: object, *, depth: int = 0) -> str:
    """Return JSON in the layout of RocketMQ's ``topicRoute``: tabs, integer keys without quotes."""
    inner, outer = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, dict) and value:
        # RocketMQ starts no new line before a key that is not text.
        members = [
            f"{key}:{fastjson_text(item, depth=depth + 1)}"
            if isinstance(key, int)
            else f"{inner}{_compact(key)}:{fastjson_text(item, depth=depth + 1)}"
            for key, item in value.items()
        ]
        return "{" + ",".join(members) + outer + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = [inner + fastjson_text(item, depth=depth + 1) for item in value]
        return "[" + ",".join(items) + outer + "]"
    return _compact(value)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
