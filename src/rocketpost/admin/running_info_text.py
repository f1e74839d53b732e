"""Text of the state that a consumer reports, as RocketMQ's ``consumerStatus`` prints it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rocketpost.admin.render import flag_text
from rocketpost.codec.bodies.leniency import fill
from rocketpost.diagnosis.running_info import RunningInfo
from rocketpost.model.group import Subscription
from rocketpost.model.route import MessageQueue

_QUEUE: Final = "%-64s  %-32s  %-4s  %-20s"
_RATES: Final = "%-64s  %14s %14s %14s %14s %18s %25s"
_RATE_KEYS: Final = ("pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS")


def running_info_text(info: RunningInfo) -> str:
    """Return the whole report, with a section for each part."""
    queues = sorted(info.queues, key=lambda queue: queue.sort_key)
    sections = [
        ["#Consumer Properties#"]
        + [f"{key:<40}: {info.properties[key]}" for key in sorted(info.properties)],
        ["#Consumer Subscription#", *_subscription_lines(info.subscriptions)],
        ["#Consumer Offset#", _heading("#Consumer Offset")]
        + [_line(queue, info.queues[queue].get("commitOffset", "")) for queue in queues],
        ["#Consumer MQ Detail#", _heading("#ProcessQueueInfo")]
        + [_line(queue, _queue_info(info.queues[queue])) for queue in queues],
        ["#Consumer RT&TPS#", *_rate_lines(info.rates)],
    ]
    if info.stacks:
        sections.append(["#Consumer jstack#", info.stacks])
    return "\n\n\n".join("\n".join(section) for section in sections) + "\n"


def _subscription_lines(subscriptions: Sequence[Subscription]) -> list[str]:
    return [
        f"{index:03d} Topic: {each.topic:<40} ClassFilter: {flag_text(each.class_filter_mode):<8} "
        f"SubExpression: {each.sub_string}"
        for index, each in enumerate(subscriptions, 1)
    ]


def _rate_lines(rates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    titles = ("#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS",
              "#ConsumeFailed TPS", "#ConsumeFailedMsgsInHour")  # fmt: skip
    lines = [_RATES % titles]
    for topic in sorted(rates):
        values = [f"{fill(float, rates[topic].get(key, 0.0)):.2f}" for key in _RATE_KEYS]
        failed = rates[topic].get("consumeFailedMsgs", 0)
        lines.append(_RATES % (topic, *values, failed))
    return lines


def _heading(last: str) -> str:
    return _QUEUE % ("#Topic", "#Broker Name", "#QID", last)


def _line(queue: MessageQueue, value: object) -> str:
    return _QUEUE % (queue.topic, queue.broker_name, queue.queue_id, value)


def _queue_info(values: Mapping[str, Any]) -> str:
    texts = (
        f"{key}={flag_text(value) if isinstance(value, bool) else value}"
        for key, value in values.items()
    )
    return f"ProcessQueueInfo [{', '.join(texts)}]"
