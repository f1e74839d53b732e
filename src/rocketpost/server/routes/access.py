"""Access rules: the rights that each request needs, as RocketMQ's access control names them.

A rule names the resource that a request touches, the part of the request that names it, and the
actions of which one must be allowed. A request must meet every rule of its route; the gate
(``server.access.gate``) asks :meth:`Access.needs` which these are.

- A topic that is a group's retry topic counts as that group; publishing to it needs Sub.
- A name that is required but missing stands for every topic or group, which few users may touch.
- The cluster is the broker's own: a request cannot choose whose rights count. Only a name server,
  which serves several clusters, takes the name from the request.
- A message is named by its position. It counts as a message of its topic in the log, whatever topic
  the request claims; a message that waits (half, delayed, timed) as one of the topic it is for.

The rules are RocketMQ's (5.3 and later). ``strict`` marks those that are ours because RocketMQ has
none: they need a right on the cluster, or on everything that the answer describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from rocketpost.access.words import EVERY, Action
from rocketpost.codec.command import Command
from rocketpost.codec.faults import InvalidParameter
from rocketpost.codec.record import parse_message_id
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.names import RETRY_PREFIX, retry_topic

OWN: Final = ""
"""The name that stands for this server's own cluster."""

_, PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = Action


class ResourceKind(Enum):
    """Kind of thing that a request touches."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"
    MESSAGE = "Message"
    """A stored message, named by its position; its topic decides."""


class Need(NamedTuple):
    """A right that one request needs: any of the actions on the resource."""

    resource: ResourceKind
    name: str
    actions: tuple[Action, ...]


Find = Callable[[Command, Any], Iterable[Need]]
"""Returns the needs of a request, given its command and header."""


class AccessRule(NamedTuple):
    """A rule that finds the rights to one resource in a request."""

    text: str
    """The rule in words, for the table of routes."""
    fields: tuple[str, ...]
    """Attributes of the header that the rule reads."""
    find: Find


@dataclass(frozen=True, slots=True)
class Access:
    """The rights that requests of one route need; ``+`` joins the rules of two."""

    rules: tuple[AccessRule, ...]
    is_strict: bool = False
    """Whether this rule is ours, because RocketMQ has none for these requests."""
    may_need_nothing: bool = False
    """Whether there are requests that touch nothing, such as the heartbeat of a producer."""

    def needs(self, command: Command, header: object) -> list[Need]:
        """Return every right that a request needs, each once.

        Args:
            command: The request.
            header: Its decoded header, None if the route has none.

        Raises:
            Fault: The topics, groups or messages that the request names cannot be read.
        """
        needs = (need for rule in self.rules for need in rule.find(command, header))
        return list(dict.fromkeys(needs))

    def __add__(self, other: Access) -> Access:
        return Access(
            self.rules + other.rules,
            self.is_strict or other.is_strict,
            self.may_need_nothing and other.may_need_nothing,
        )

    def __str__(self) -> str:
        text = " + ".join(rule.text for rule in self.rules)
        return f"{text} (strict)" if self.is_strict else text


def strict(access: Access) -> Access:
    """Mark a rule as ours: RocketMQ has none for these requests."""
    return Access(access.rules, is_strict=True)


def of_cluster(*actions: Action) -> Access:
    """Return the rule for a request that touches this server's cluster."""
    return _always(f"Cluster {_words(actions)}", Need(ResourceKind.CLUSTER, OWN, actions))


def of_named_cluster(*actions: Action) -> Access:
    """Return the rule for a request on the cluster that it names, or on every cluster if none."""

    def find(command: Command, header: Any) -> list[Need]:
        return [Need(ResourceKind.CLUSTER, header.cluster_name or EVERY, actions)]

    return Access(
        (AccessRule(f"Cluster(cluster_name) {_words(actions)}", ("cluster_name",), find),)
    )


def of_every_topic(*actions: Action) -> Access:
    """Return the rule for a request that touches all topics at once."""
    return _always(f"Topic:* {_words(actions)}", Need(ResourceKind.TOPIC, EVERY, actions))


def of_every_group(*actions: Action) -> Access:
    """Return the rule for a request that touches all groups at once."""
    return _always(f"Group:* {_words(actions)}", Need(ResourceKind.GROUP, EVERY, actions))


def of_topic(*actions: Action, field: str = "topic") -> Access:
    """Return the rule for a request on the topic in a header field, or on every topic if none."""

    def find(command: Command, header: object) -> list[Need]:
        return [topic_need(getattr(header, field), actions)]

    return Access((AccessRule(f"Topic({field}) {_words(actions)}", (field,), find),))


def of_group(*actions: Action, field: str = "group", optional: bool = False) -> Access:
    """Return the rule for a request that touches the group in a header field.

    If the field is empty, the request touches no group if ``optional``, else every group.
    """

    def find(command: Command, header: object) -> Iterator[Need]:
        name = getattr(header, field)
        if name or not optional:
            yield group_need(name, actions)

    rule = AccessRule(f"Group({field}{'?' * optional}) {_words(actions)}", (field,), find)
    return Access((rule,), may_need_nothing=optional)


def of_consumer(*actions: Action) -> Access:
    """Return the rule for a request on a consumer group and a topic that it pops or commits."""

    def find(command: Command, header: Any) -> list[Need]:
        return consumer_needs(header.topic, header.consumer_group, actions)

    words = _words(actions)
    text = f"Topic(topic) {words} + Group(consumer_group) {words}"
    return Access((AccessRule(text, ("topic", "consumer_group"), find),))


def of_message(*actions: Action, field: str) -> Access:
    """Return the rule for a request on the stored message at the position in a header field."""

    def find(command: Command, header: object) -> list[Need]:
        return [Need(ResourceKind.MESSAGE, str(getattr(header, field)), actions)]

    return Access((AccessRule(f"Message({field}) {_words(actions)}", (field,), find),))


def of_message_id(*actions: Action, field: str = "msg_id") -> Access:
    """Return the rule for a request on the stored message whose id is in a header field."""

    def find(command: Command, header: object) -> list[Need]:
        try:
            _, position = parse_message_id(getattr(header, field))
        except RemoteProtocolError as error:
            raise InvalidParameter(f"msgId: {error}") from None
        return [Need(ResourceKind.MESSAGE, str(position), actions)]

    return Access((AccessRule(f"Message({field}) {_words(actions)}", (field,), find),))


def topic_need(name: str | None, actions: tuple[Action, ...]) -> Need:
    """Return the right to a topic; a retry topic counts as its group, no name as every topic."""
    if not name or not name.startswith(RETRY_PREFIX):
        return Need(ResourceKind.TOPIC, name or EVERY, actions)
    # Popping has retry topics for each topic of a group: ``%RETRY%group+topic``.
    owner = name.removeprefix(RETRY_PREFIX).partition("+")[0]
    mapped = dict.fromkeys(SUB if action is PUB else action for action in actions)
    return group_need(owner, tuple(mapped))


def group_need(name: str | None, actions: tuple[Action, ...]) -> Need:
    """Return the right to a group; no name counts as every group."""
    return Need(ResourceKind.GROUP, name or EVERY, actions)


def consumer_needs(topic_name: str, group_name: str, actions: tuple[Action, ...]) -> list[Need]:
    """Return the rights to a group and to a topic that it consumes.

    The older retry topic of popping, ``%RETRY%group_topic``, could also belong to another group. It
    counts as the named group and the topic, so that no user reads messages without a right to both.
    """
    of_group = group_need(group_name, actions)
    popped = f"{retry_topic(group_name)}_"
    if group_name and topic_name.startswith(popped) and len(topic_name) > len(popped):
        return [Need(ResourceKind.TOPIC, topic_name.removeprefix(popped), actions), of_group]
    return [topic_need(topic_name, actions), of_group]


NOTHING: Final = Access(
    (AccessRule("nothing", (), lambda command, header: ()),), may_need_nothing=True
)
"""The rule for requests that are refused for every user."""


def _always(text: str, need: Need) -> Access:
    return Access((AccessRule(text, (), lambda command, header: (need,)),))


def _words(actions: Iterable[Action]) -> str:
    return "|".join(action.value for action in actions)
