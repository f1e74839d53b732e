"""Which queue of its topic a message goes to: the one chosen, its key's, or the next in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpost.client.message import Message
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.sender import Sender
from rocketpost.errors import MessageRefused
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.route import MessageQueue

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses one of a topic's queues for a message."""

Target = tuple[MessageQueue, bool]
"""A queue, and whether it must be that one."""


def select_by_hash(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key, the same one that a Java producer takes."""
    return queues[abs(string_hash(sharding_key)) % len(queues)]


def target_queue(
    message: Message,
    route: PublishRoute,
    sender: Sender,
    queue: MessageQueue | None = None,
    selector: QueueSelector | None = None,
) -> Target:
    """Return the queue of a message, and whether it must be that one."""
    chosen = chosen_queue(message, route, queue, selector)
    return (chosen, True) if chosen is not None else (sender.choose(route), False)


def chosen_queue(
    message: Message,
    route: PublishRoute,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
) -> MessageQueue | None:
    """Return the queue that the user or the message's key chooses, if they do."""
    if queue is not None:
        return queue
    if selector is not None:
        return selector(route.queues, message)
    if message.sharding_key:
        return select_by_hash(route.queues, message.sharding_key)
    return None


def check_queue(message: Message, queue: MessageQueue | None) -> None:
    """Check that a queue is one of the message's topic.

    Raises:
        MessageRefused: It is another topic's.
    """
    if queue is not None and queue.topic != message.topic:
        raise MessageRefused(
            f"the queue is one of {queue.topic}, the message is for {message.topic}"
        )
