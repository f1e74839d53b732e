"""What a consumer tells of itself, as RocketMQ's ``consumerStatus`` shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rocketpost.admin.render import flag_text
from rocketpost.codec.bodies.client import read_subscription
from rocketpost.codec.bodies.leniency import fill
from rocketpost.codec.bodies.topic import decode_object, parse_queue_table
from rocketpost.model.group import Subscription
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue

_PLACE: Final = "%-64s  %-32s  %-4s  %-20s"
_RATES: Final = "%-64s  %14s %14s %14s %14s %18s %25s"
_RATE_KEYS: Final = ("pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS")


class RunningInfo(msgspec.Struct, kw_only=True):
    """One consumer by its own account."""

    properties: dict[str, str] = {}
    subscriptions: list[Subscription] = []
    queues: dict[MessageQueue, dict[str, Any]] = {}
    rates: dict[str, dict[str, Any]] = {}
    stacks: str = ""


def decode_running_info(data: bytes) -> RunningInfo:
    """Read the answer to GET_CONSUMER_RUNNING_INFO.

    Raises:
        RemoteProtocolError: It is none.
    """
    plain = decode_object(data)
    subscriptions = fill(list[dict[str, Any]], plain.get("subscriptionSet") or [])
    queues = parse_queue_table(plain.get("mqTable") or {})
    return RunningInfo(
        properties=fill(dict[str, str], plain.get("properties") or {}),
        subscriptions=sorted(map(read_subscription, subscriptions), key=lambda each: each.topic),
        queues={queue: fill(dict[str, Any], value) for queue, value in queues.items()},
        rates=fill(dict[str, dict[str, Any]], plain.get("statusTable") or {}),
        stacks=fill(str, plain.get("jstack") or ""),
    )


def running_info_text(info: RunningInfo) -> str:
    """Return everything, a section each."""
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


def same_subscriptions(infos: Sequence[RunningInfo]) -> bool:
    """Tell whether all consumers of a group want the same, as they must."""
    wanted = [
        {(each.topic, each.expression_type, each.sub_string) for each in info.subscriptions}
        for info in infos
    ]
    return all(each == wanted[0] for each in wanted)


def rebalance_problems(
    infos: Mapping[str, RunningInfo], queues: Mapping[str, Sequence[MessageQueue]]
) -> list[str]:
    """Return which queues nobody has, or more than one consumer has.

    Args:
        infos: Every consumer of a group, by client id.
        queues: The queues of every topic that they read.
    """
    problems = []
    for topic in sorted(queues):
        for queue in queues[topic]:
            owners = sorted(client for client, info in infos.items() if queue in info.queues)
            if len(owners) != 1:
                who = f"{len(owners)} consumers ({', '.join(owners)})" if owners else "no consumer"
                problems.append(f"{topic} queue {queue.queue_id} of {queue.broker_name}: {who}")
    return problems


def topics_read(infos: Sequence[RunningInfo]) -> list[str]:
    """Return the topics that consumers read, retry topics left out."""
    topics = {each.topic for info in infos for each in info.subscriptions}
    return sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX))


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
    return _PLACE % ("#Topic", "#Broker Name", "#QID", last)


def _line(queue: MessageQueue, value: object) -> str:
    return _PLACE % (queue.topic, queue.broker_name, queue.queue_id, value)


def _queue_info(values: Mapping[str, Any]) -> str:
    texts = (
        f"{key}={flag_text(value) if isinstance(value, bool) else value}"
        for key, value in values.items()
    )
    return f"ProcessQueueInfo [{', '.join(texts)}]"
