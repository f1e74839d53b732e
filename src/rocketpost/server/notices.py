"""Notices to consumer groups whose members changed, so that they share the queues anew.

Every member gets a notice of every change, so the number of notices would be quadratic while a
group grows one member at a time. A small group is notified at once. A larger one is notified in
slices, followed by a pause that grows with its size. Changes during the pause share one notice at
its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, cast

from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.steps import Steps, finish
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.client import ConsumerGroupRequest
from rocketpost.transport.connection import Connection
from rocketpost.transport.turns import SlicedWork, Turns

AT_ONCE_MAX: Final = 32
"""Largest group that is notified of every change at once, in less than a millisecond."""
PAUSE_SECONDS_PER_MEMBER: Final = 0.0002
"""A notice takes about 10 us, so notices take at most a twentieth of the broker's time."""
PAUSE_SECONDS_MAX: Final = 5.0
"""Members check for changes every 20 s, so a much later notice would be useless."""
_MEMBERS_AT_A_STEP: Final = 16


class Notices:
    """Notifies the members of consumer groups of changes. Owned by the loop.

    Args:
        notifies: Returns whether the broker's settings allow notices.
        turns: The queue in which notices to many members wait for their turn.
    """

    def __init__(
        self,
        *,
        membership: Membership,
        groups: GroupTable,
        notifies: Callable[[], bool],
        turns: Turns | None = None,
    ) -> None:
        self._membership = membership
        self._groups = groups
        self._notifies = notifies
        self._turns = Turns() if turns is None else turns
        self._changed: dict[str, bool] = {}

    def notify(self, groups: Iterable[str]) -> None:
        """Notify the members of ``groups``, now or when the group's pause is over."""
        for group in groups:
            if group in self._changed:
                self._changed[group] = True
                continue
            connections = self._to_tell(group)
            if len(connections) <= AT_ONCE_MAX:
                finish(self._tell(group, connections))
            else:
                self._changed[group] = False
                self._turns.add(SlicedWork(self._tell_large(group, connections), self._turns))

    def _to_tell(self, group: str) -> list[Connection]:
        members = self._membership.consumer_group(group)
        if members is None or members.is_broadcasting or not self._notifies():
            return []
        config = self._groups.find(group)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return []
        return [cast(Connection, each.client.connection) for each in members.members.values()]

    def _tell(self, group: str, connections: list[Connection]) -> Steps[None]:
        fields = to_fields(ConsumerGroupRequest(consumer_group=group))
        for number, connection in enumerate(connections, 1):
            if connection.is_open:
                connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields=fields)
            if number % _MEMBERS_AT_A_STEP == 0:
                yield

    def _tell_large(self, group: str, connections: list[Connection]) -> Steps[None]:
        yield from self._tell(group, connections)
        pause = min(len(connections) * PAUSE_SECONDS_PER_MEMBER, PAUSE_SECONDS_MAX)
        asyncio.get_running_loop().call_later(pause, self._end_pause, group)

    def _end_pause(self, group: str) -> None:
        if self._changed.pop(group):
            self.notify([group])
