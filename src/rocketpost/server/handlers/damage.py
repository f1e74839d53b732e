"""Requests of administrators about messages lost to damage on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketpost.codec.bodies.damage import DamagedRange, DamageList
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.admin import GetDamage
from rocketpost.server.handlers.replies import json_reply
from rocketpost.server.routes.access import GET, of_cluster, strict
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.store.integrity.damage import Damage
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.connection import Connection

RANGE_COUNT_MAX: Final = 1000
"""Largest number of ranges in one answer."""


class DamageHandlers:
    """Serves the list of damaged ranges, and values about them."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def routes(self) -> Sequence[Route]:
        """Return the only route of this family."""
        return [
            plain(RequestCode.GET_DAMAGE, GetDamage, strict(of_cluster(GET)), self.list),
        ]

    def list(self, connection: Connection, command: Command, header: GetDamage) -> Reply:
        """Return the damaged ranges of one topic or of all, last found first."""
        topic = header.topic
        found = [
            damage
            for damage in self._store.damage.all()
            if not topic or damage.topic in (topic, None)
        ]
        found.sort(key=lambda damage: damage.found_ms, reverse=True)
        return json_reply(
            DamageList(
                ranges=[_to_body(damage) for damage in found[:RANGE_COUNT_MAX]],
                total=len(found),
                unlisted=self._store.damage.unlisted_count,
            )
        )

    def values(self) -> dict[str, str]:
        """Return the runtime values about damage."""
        damage, integrity = self._store.damage, self._store.integrity
        newest = max(damage.all(), key=lambda each: each.found_ms, default=None)
        return {
            "damagedRanges": str(damage.count + damage.unlisted_count),
            "damagedRangeNewest": "" if newest is None else _text(newest),
            "queueEntriesMended": str(integrity.mended_count),
            "queueEntriesLost": str(integrity.check.lost_count),
            "scrubProgress": integrity.scrub.describe_from_thread(),
            "scrubDamagedRanges": str(integrity.scrub.found_count),
        }


def _to_body(damage: Damage) -> DamagedRange:
    return DamagedRange(
        begin=damage.begin,
        end=damage.end,
        reason=damage.reason,
        topic=damage.topic,
        queue_id=damage.queue_id,
        queue_offset=damage.queue_offset,
        found_timestamp=damage.found_ms,
        found_by=damage.found_by,
    )


def _text(damage: Damage) -> str:
    place = f"position {damage.begin}, {damage.end - damage.begin} bytes"
    if damage.topic is not None:
        place = f"{damage.topic} queue {damage.queue_id} offset {damage.queue_offset}, {place}"
    return f"{place}: {damage.reason}"
