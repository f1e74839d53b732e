"""Request mode of each group in each topic: pulling, or popping with a number of shared queues.

Clients that leave assignment to brokers learn the mode with their queues
(``broker.group.assignment``). Modes set by an administrator are saved in
``messageRequestMode.json``; all others follow the settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.bodies.assignment import (
    MODES,
    POP,
    PULL,
    RequestMode,
    RequestModeTable,
    decode_request_modes,
)
from rocketpost.codec.faults import InvalidParameter, NoPermission, SystemBusy
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.model import names

logger = logging.getLogger(__name__)

MODES_MAX: Final = 100_000
"""Stored modes of all groups in all topics; beyond it new ones are refused."""


class ModeRules(NamedTuple):
    """Default mode of a topic and a group."""

    mode: str = PULL
    pop_share_count: int = -1


class RequestModes:
    """The request modes of one broker. Owned by the event loop.

    Args:
        on_change: Called with the topic's name after each change.
    """

    def __init__(self, *, on_change: Callable[[str], None] | None = None) -> None:
        self.on_change = on_change
        self.rules = ModeRules()
        self._rows: dict[str, dict[str, RequestMode]] = {}
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""

    def find(self, topic: str, group: str) -> RequestMode:
        """Return the mode in which a group takes messages from a topic."""
        known = self._rows.get(topic, {}).get(group)
        if known is not None:
            return known
        rules = self.rules
        if rules.mode == PULL or topic.startswith(names.RETRY_PREFIX):
            return RequestMode(topic=topic, consumer_group=group, mode=PULL)
        return RequestMode(
            topic=topic, consumer_group=group, mode=POP, pop_share_queue_num=rules.pop_share_count
        )

    def set(self, wanted: RequestMode) -> None:
        """Set the mode in which a group takes messages from a topic.

        Raises:
            NoPermission: The topic is a retry topic, which is always pulled.
            InvalidParameter: A name or the mode is not allowed.
            SystemBusy: There are too many already.
        """
        if wanted.topic.startswith(names.RETRY_PREFIX):
            raise NoPermission("retry topics are always pulled; set the mode of the topic itself")
        problem = _problem(wanted)
        if problem is not None:
            raise InvalidParameter(problem)
        row = self._rows.get(wanted.topic, {})
        if wanted.consumer_group not in row and sum(map(len, self._rows.values())) >= MODES_MAX:
            raise SystemBusy(f"[OVERLOAD]{MODES_MAX} request modes are already set")
        if row.get(wanted.consumer_group) == wanted:
            return
        self._rows.setdefault(wanted.topic, {})[wanted.consumer_group] = wanted
        self.revision += 1
        if self.on_change is not None:
            self.on_change(wanted.topic)

    def body(self) -> bytes:
        """Return the body of GET_ALL_MESSAGE_REQUEST_MODE."""
        return encode(RequestModeTable(self._rows))

    def to_json(self) -> bytes:
        """Return the text of ``messageRequestMode.json``."""
        return msgspec.json.format(self.body(), indent=2)

    def load(self, data: bytes) -> None:
        """Load the table from ``messageRequestMode.json``; invalid entries are dropped.

        Raises:
            StoreError: The text is not such a table.
        """
        try:
            table = decode_request_modes(data)
        except RemoteProtocolError as error:
            raise StoreError(f"messageRequestMode.json cannot be read: {error}") from None
        self._rows = _sound_rows(table)

    def follow(self, master: RequestModeTable) -> None:
        """Apply the table of the master; invalid entries are dropped."""
        rows = _sound_rows(master)
        if rows != self._rows:
            self._rows = rows
            self.revision += 1
            if self.on_change is not None:
                self.on_change("")


def _sound_rows(table: RequestModeTable) -> dict[str, dict[str, RequestMode]]:
    sound: dict[str, dict[str, RequestMode]] = {}
    for topic, row in table.message_request_mode_map.items():
        for group, mode in row.items():
            named = msgspec.structs.replace(mode, topic=topic, consumer_group=group)
            if (problem := _problem(named)) is not None:
                logger.warning("request mode dropped: topic=%r reason=%s", topic, problem)
            else:
                sound.setdefault(topic, {})[group] = named
    return sound


def _problem(mode: RequestMode) -> str | None:
    if mode.mode not in MODES:
        return f"the mode must be one of {' and '.join(MODES)}"
    return names.topic_problem(mode.topic) or names.group_problem(mode.consumer_group)
