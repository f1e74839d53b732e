"""Notices to consumer groups: their members changed, so they share the queues anew.

Every member is told of every change, so a group that grows by one member after the other would be
told of it a quadratic number of times. Small groups are told at once. A larger one is told in
slices, and then not again before a pause that grows with its size; what changes meanwhile is told
by one notice at its end.
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
"""Members up to which a group is told of every change at once, in less than a millisecond."""
PAUSE_SECONDS_PER_MEMBER: Final = 0.0002
"""A notice takes about 10 us, so that notices take a twentieth of the broker's time at most."""
PAUSE_SECONDS_MAX: Final = 5.0
"""Members look for themselves every 20 s, so a notice that came much later would be none."""
_MEMBERS_AT_A_STEP: Final = 16


class Notices:
    """Tells the members of consumer groups that these changed. Owned by the loop.

    Args:
        notifies: Whether members are told of changes, as the broker's settings say now.
        turns: Where notices to many members wait for their turn.
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

    def changed(self, groups: Iterable[str]) -> None:
        """Tell the members of ``groups``, or have them told when their pause is over."""
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
            self.changed([group])
