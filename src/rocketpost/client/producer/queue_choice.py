"""Choice of a message's queue: the given one, that of its key, or the next in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpost.client.checks import check_function, check_message_queue, check_timeout
from rocketpost.client.message import Message
from rocketpost.client.producer.sender import Sender
from rocketpost.client.route_cache import PublishRoute
from rocketpost.errors import ConfigError, MessageRefused
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.route import MessageQueue

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses one of a topic's queues for a message."""

Target = tuple[MessageQueue, bool]
"""A queue, and whether it is mandatory."""


def select_by_hash(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key, the same as a Java producer's."""
    return queues[abs(string_hash(sharding_key)) % len(queues)]


def target_queue(
    message: Message,
    route: PublishRoute,
    sender: Sender,
    queue: MessageQueue | None = None,
    selector: QueueSelector | None = None,
) -> Target:
    """Return the queue of a message, and whether it is mandatory."""
    chosen = choose_queue(message, route, queue, selector)
    return (chosen, True) if chosen is not None else (sender.choose(route), False)


def choose_queue(
    message: Message,
    route: PublishRoute,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
) -> MessageQueue | None:
    """Return the queue that the user or the message's key chooses, or None."""
    if queue is not None:
        return queue
    if selector is not None:
        chosen = selector(route.queues, message)
        check_message_queue("what the selector returns", chosen)
        return chosen
    if message.sharding_key:
        return select_by_hash(route.queues, message.sharding_key)
    return None


def check_send(
    message: Message,
    queue: MessageQueue | None,
    selector: QueueSelector | None = None,
    timeout: float | None = None,
) -> None:
    """Check the arguments of a send.

    Raises:
        MessageRefused: It is not a message, or the queue belongs to another topic.
        ConfigError: Another argument is invalid.
    """
    if type(message) is not Message and not isinstance(message, Message):
        raise MessageRefused(f"only a Message can be sent, not {message!r}")
    if queue is not None:
        check_message_queue("queue", queue)
        if selector is not None:
            raise ConfigError("give queue or selector, not both")
        if queue.topic != message.topic:
            raise MessageRefused(
                f"the queue is one of {queue.topic}, the message is for {message.topic}"
            )
    if selector is not None:
        check_function("selector", selector, arguments=2, may_be_async=False)
    if timeout is not None:
        check_timeout(timeout)
