"""The check that a message has the type that its topic requires. ADR 0059.

A topic with the attribute ``message.type`` accepts messages of that type only:

    NORMAL       plain ones; no sharding key
    FIFO         plain ones, with or without a sharding key: classic clients order by the queue they
                 choose and send no key
    DELAY        with a delay level, or due at a time of their own
    TRANSACTION  half messages of transactions
    PRIORITY     all of the above, see ``broker.priority``
    MIXED        all; needs enableMixedMessageType
    UNSPECIFIED  all, as without the attribute

Retry and dead-letter topics have no type. A message with TRANSFER_FLAG was checked when it was
first sent: copies of dead letters have the flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketpost.broker.attributes import MESSAGE_TYPE
from rocketpost.broker.delay.service import level_of
from rocketpost.broker.kinds import TIMER
from rocketpost.codec.faults import MessageIllegal
from rocketpost.model import properties as names
from rocketpost.model.topic import TopicConfig

NORMAL: Final = "NORMAL"
FIFO: Final = "FIFO"
DELAY: Final = "DELAY"
TRANSACTION: Final = "TRANSACTION"
_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    NORMAL: frozenset({NORMAL}),
    FIFO: frozenset({FIFO, NORMAL}),
    DELAY: frozenset({DELAY}),
    TRANSACTION: frozenset({TRANSACTION}),
}


def is_typed(config: TopicConfig) -> bool:
    """Tell whether a topic accepts messages of some types only."""
    return config.attributes.get(MESSAGE_TYPE) in _TAKEN


def type_of(properties: Mapping[str, str]) -> str:
    """Return the type of a message by its properties, as RocketMQ's proxy does."""
    if properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
        return TRANSACTION
    if level_of(properties.get(names.DELAY_LEVEL)) or any(name in properties for name in TIMER):
        return DELAY
    return FIFO if names.SHARDING_KEY in properties else NORMAL


def check_type(config: TopicConfig, properties: Mapping[str, str]) -> None:
    """Refuse a message of a type that its topic does not accept.

    Raises:
        MessageIllegal: The message is of another type.
    """
    taken = _TAKEN.get(config.attributes.get(MESSAGE_TYPE, ""))
    if taken is None or names.TRANSFER_FLAG in properties:
        return
    found = type_of(properties)
    if found not in taken:
        raise MessageIllegal(
            f"the topic {config.topic_name} accepts {' and '.join(sorted(taken))} messages "
            f"({MESSAGE_TYPE}={config.attributes[MESSAGE_TYPE]}), this one is {found}; send it to "
            "another topic, change the attribute with mqadmin updateTopic, or set "
            "enableTopicMessageTypeCheck=false"
        )
