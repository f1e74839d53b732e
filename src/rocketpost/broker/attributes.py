"""Attributes of topics and groups: named, checked values beside the ordinary configuration.

A request writes ``+key=value`` to set one and ``-key`` to remove one; stored keys carry no sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpost.codec.faults import ServerError

MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"
PRIORITY: Final = "PRIORITY"
DEDUP_SECONDS: Final = "dedup.seconds"
"""Rocketpost only: seconds during which a message with a stored unique key is a duplicate."""
DEDUP_SECONDS_MAX: Final = 7 * 86_400
RETENTION_HOLD: Final = "retention.hold"
"""Rocketpost only: whether messages expire only after the group has consumed them."""


class Attribute(NamedTuple):
    """The values of an attribute, and whether it may change once it is set.

    ``missing`` lists values of RocketMQ that have no effect here; ``reason`` says why if there are
    too many to list. A topic from another broker's store may have such a value, but no request can
    set one.
    """

    choices: frozenset[str] | None = None
    minimum: int = 0
    fixed: bool = False
    maximum: int | None = None
    missing: frozenset[str] = frozenset()
    reason: str | None = None

    def problem(self, value: str) -> str | None:
        """Return why ``value`` is refused, or None."""
        if value in self.missing:
            return "only RocketMQ has that value, this broker would not act on it"
        if self.choices is not None:
            if value in self.choices:
                return None
            return self.reason or f"it must be {' or '.join(sorted(self.choices))}"
        try:
            number = int(value)
            fits = number >= self.minimum and (self.maximum is None or number <= self.maximum)
        except ValueError:
            fits = False
        most = "" if self.maximum is None else f" to {self.maximum}"
        return None if fits else f"it must be a whole number from {self.minimum}{most or ' up'}"


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(frozenset({"SimpleCQ"}), fixed=True, missing=frozenset({"BatchCQ"})),
    "cleanup.policy": Attribute(
        frozenset({"DELETE"}), fixed=True, missing=frozenset({"COMPACTION"})
    ),
    MESSAGE_TYPE: Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED, PRIORITY})
    ),
    "reserve.time": Attribute(
        frozenset({"-1"}),
        reason="it only acts on RocketMQ's tiered storage, which this broker does not have "
        "(fileReservedTime applies to all topics; a group with retention.hold keeps what it has "
        "not read)",
    ),
    DEDUP_SECONDS: Attribute(minimum=0, maximum=DEDUP_SECONDS_MAX),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(minimum=0, maximum=100),
    RETENTION_HOLD: Attribute(frozenset({"true", "false"})),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """Read ``+key=value,-key2`` into signed keys.

    Raises:
        ServerError: The text has another form, or names a key twice.
    """
    changes: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in (text or "").split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key[:1] != ("+" if equals else "-") or len(key) < 2:
            raise ServerError(f"bad attribute {part!r}: write +key=value or -key")
        if key in changes:
            raise ServerError(f"attribute {key[1:]!r} is given twice")
        changes[key] = value
    return changes


def changed_attributes(
    known: Mapping[str, Attribute],
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
) -> dict[str, str]:
    """Return ``current`` with ``changes`` (signed keys) made; ``current`` is None at creation.

    Raises:
        ServerError: A change is not allowed; nothing is changed.
    """
    result = dict(current or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") or f"{'-' if sign == '+' else '+'}{key}" in changes:
            raise ServerError(f"attribute {signed!r} must be given once, as +key or -key")
        attribute = known.get(key)
        if attribute is None:
            raise ServerError(f"unknown attribute {key!r}; known are {', '.join(sorted(known))}")
        if sign == "-":
            _remove(result, key, attribute, creating=current is None)
        else:
            _set(result, key, value, attribute)
    return result


def _remove(result: dict[str, str], key: str, attribute: Attribute, *, creating: bool) -> None:
    if creating:
        raise ServerError(
            f"attribute {key!r} cannot be removed: the topic or group does not exist yet"
        )
    if key not in result:
        raise ServerError(f"attribute {key!r} is not set, so it cannot be removed")
    if attribute.fixed:
        raise ServerError(f"attribute {key!r} cannot change once it is set")
    del result[key]


def _set(result: dict[str, str], key: str, value: str, attribute: Attribute) -> None:
    if result.get(key) == value:
        return
    problem = attribute.problem(value)
    if problem is not None:
        raise ServerError(f"attribute {key!r} cannot be {value!r}: {problem}")
    if attribute.fixed and result.get(key, value) != value:
        raise ServerError(f"attribute {key!r} cannot change once it is set")
    result[key] = value
