"""Types of messages and topics: which messages a topic accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketpost.model import properties as names
from rocketpost.model.names import is_retry_or_dlq
from rocketpost.model.topic import TopicConfig
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.wire.enums import Code, MessageType

ATTRIBUTE: Final = "message.type"
MIXED: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)
_TIMED: Final = (
    names.DELAY_LEVEL,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
)
_ACCEPTED: Final[Mapping[str, tuple[MessageType, ...]]] = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "PRIORITY": (MessageType.PRIORITY,),
    "MIXED": MIXED,
}


def accepted_types(topic: TopicConfig | None) -> tuple[MessageType, ...]:
    """Return the types of messages that a topic accepts; without the attribute, normal ones."""
    if topic is None:
        return (MessageType.MESSAGE_TYPE_UNSPECIFIED,)
    kind = topic.attributes.get(ATTRIBUTE, "NORMAL")
    return _ACCEPTED.get(kind, (MessageType.MESSAGE_TYPE_UNSPECIFIED,))


def type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message by its stored properties."""
    if properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in _TIMED):
        return MessageType.DELAY
    if names.SHARDING_KEY in properties:
        return MessageType.FIFO
    if names.PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.NORMAL


def check_type(topic: str, config: TopicConfig | None, properties: Mapping[str, str]) -> None:
    """Refuse a message of a type that its topic does not accept.

    Raises:
        Refusal: It is of another type.
    """
    if is_retry_or_dlq(topic):
        return
    found, accepted = type_of(properties), accepted_types(config)
    if found not in accepted:
        wanted = ", ".join(each.name for each in accepted)
        raise Refusal(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the topic {topic} accepts {wanted} messages, this one is {found.name}; send it to a "
            f"topic with {ATTRIBUTE}={found.name}",
        )
