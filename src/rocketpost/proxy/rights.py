"""Rights that calls need, and the guard that checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from rocketpost.access.words import Action, Kind
from rocketpost.proxy.backend import Identity


class Right(NamedTuple):
    """One of some actions on a topic or a group."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]


class Guard(Protocol):
    """Access control, as the proxy uses it."""

    def is_signed(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Tell whether the headers of a call prove a user, or need not; nothing is noted of it."""
        ...

    @property
    def is_on(self) -> bool:
        """Whether calls are checked at all."""
        ...

    def admit(self, identity: Identity, headers: Mapping[str, str], method: str) -> str:
        """Return the user who makes a call; empty if access control is off.

        Raises:
            Refusal: The call is not signed, or not by an enabled user.
        """
        ...

    def check(self, identity: Identity, user: str, rights: list[Right], method: str) -> None:
        """Check that a user has all rights that a call needs.

        Raises:
            Refusal: One is missing.
        """
        ...


class NoGuard:
    """Access control that is off."""

    is_on = False

    def is_signed(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Accept any headers."""
        return True

    def admit(self, identity: Identity, headers: Mapping[str, str], method: str) -> str:
        """Admit everybody."""
        return ""

    def check(self, identity: Identity, user: str, rights: list[Right], method: str) -> None:
        """Allow everything."""


def pub(topic: str) -> Right:
    """Return the right to send to a topic."""
    return Right(Kind.TOPIC, topic, (Action.PUB,))


def _sub(topic: str) -> Right:
    return Right(Kind.TOPIC, topic, (Action.SUB,))


def _group(group: str) -> Right:
    return Right(Kind.GROUP, group, (Action.SUB,))


def _of_send(request: Any) -> list[Right]:
    return [pub(topic) for topic in sorted({each.topic.name for each in request.messages})]


def _of_publisher(request: Any) -> list[Right]:
    return [pub(request.topic.name)]


def _of_consumer(request: Any) -> list[Right]:
    return [_group(request.group.name), _sub(request.topic.name)]


def _of_queue(request: Any) -> list[Right]:
    return [_group(request.group.name), _sub(request.message_queue.topic.name)]


def _of_queue_alone(request: Any) -> list[Right]:
    return [_sub(request.message_queue.topic.name)]


def _of_route(request: Any) -> list[Right]:
    return [Right(Kind.TOPIC, request.topic.name, (Action.PUB, Action.SUB))]


def _of_member(request: Any) -> list[Right]:
    return [_group(request.group.name)] if request.group.name else []


def of_settings(settings: Any) -> list[Right]:
    """Return the rights that the settings of a client need."""
    if settings.HasField("publishing"):
        return [pub(topic.name) for topic in settings.publishing.topics]
    subscription = settings.subscription
    topics = [_sub(entry.topic.name) for entry in subscription.subscriptions]
    return [_group(subscription.group.name), *topics]


NEEDED: Final[Mapping[str, Callable[[Any], list[Right]]]] = {
    "QueryRoute": _of_route,
    "Heartbeat": _of_member,
    "SendMessage": _of_send,
    "QueryAssignment": _of_consumer,
    "ReceiveMessage": _of_queue,
    "AckMessage": _of_consumer,
    "ForwardMessageToDeadLetterQueue": _of_consumer,
    "PullMessage": _of_queue,
    "UpdateOffset": _of_queue,
    "GetOffset": _of_queue,
    "QueryOffset": _of_queue_alone,
    "EndTransaction": _of_publisher,
    "NotifyClientTermination": _of_member,
    "ChangeInvisibleDuration": _of_consumer,
    "RecallMessage": _of_publisher,
}
"""The rights that a call of each method needs."""
