"""A broker's pulls without sockets, with and without the pull lane.

Everything from ``PullFeature`` down is real, the files included. Sends fill the queues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pull import known_pulls
from rocketpost.client.compression import decompress
from rocketpost.kernel import FORM, pull_lane
from rocketpost.model.group import GroupConfig, Subscription, parse_tags
from rocketpost.server.access.control import AccessControl
from rocketpost.server.features import pull as pull_feature
from rocketpost.server.features.pull import PullFeature
from rocketpost.server.handlers import pull_lane as server_lane
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.store.config import FlushMode
from rocketpost.transport.turns import Turns

from .rig import COMPILED, OFF, Rig, _load_plain

_plain: ModuleType = _load_plain("pull_lane") if FORM.is_compiled else pull_lane


class PullRig(Rig):
    """A broker's pulls in one mode. Belongs to the event loop.

    Args:
        root: Directory of the store.
        mode: OFF, COMPILED or UNCOMPILED.
        access: Access control; None if it is off.
    """

    def __init__(self, root: Path, mode: str, access: AccessControl | None = None) -> None:
        super().__init__(
            root, OFF, segment_bytes=64 * 1024, flush_mode=FlushMode.ASYNC_FLUSH, access=access
        )
        clock = self.clock
        self.groups = GroupTable(clock=clock)
        self.offsets = OffsetTable(clock=clock)
        self.membership = Membership(clock=clock)
        given = self._context()
        self.context = dataclasses.replace(
            given,
            tables=given.tables._replace(groups=self.groups, offsets=self.offsets),
            membership=self.membership,
            filters=Filters(table=FilterTable(clock=clock), unpack=decompress),
            turns=Turns(),
        )
        self.answered = 0
        """Number of pulls that the lane answered."""
        with self._patched_pulls(mode):
            self.pulls = PullFeature(self.context)
            self.configure_pulls()
        answer = self.pulls._known.answer
        self.pulls._known.answer = lambda *given: self._counted(answer(*given))  # type: ignore[method-assign]
        self.writer.arrival_listeners = (
            *self.writer.arrival_listeners,
            *self.pulls.arrival_listeners(),
        )
        routes = [*self.feature.routes(), *self.pulls.routes()]
        self.dispatcher.use(routes, () if mode == OFF else [self.pulls.express])
        self.held: list[int] = []

    def _counted(self, answer: bytes | None) -> bytes | None:
        self.answered += answer is not None
        return answer

    def configure_pulls(self, **changes: Any) -> None:
        """Change settings of the broker."""
        self.broker = dataclasses.replace(self.broker, **changes)
        settings = LiveConfig(self.broker, self.config, clock=self.clock)
        object.__setattr__(self.context, "settings", settings)
        form: Any = SimpleNamespace(is_compiled=True)
        with patch.object(pull_feature, "FORM", form):
            self.pulls.configure(self.broker, self.config)

    def set_group(self, name: str, **changes: Any) -> None:
        """Create or change a group."""
        self.groups.update(GroupConfig(group_name=name, **changes))

    def subscribe(
        self, group: str, topic: str, tags: str, *, version: int, model: str = "CLUSTERING"
    ) -> None:
        """Let a consumer subscribe to a topic."""
        self.membership.join_consumer(
            group,
            Client("connection", "client", "192.0.2.7:4711", "JAVA", 479),
            consume_type="CONSUME_PASSIVELY",
            message_model=model,
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=[_subscription(topic, tags, version)],
        )

    async def settle(self) -> None:
        """Return when nothing waits for the disk."""
        await super().settle()
        while len(self.pulls.cold_reads):
            await self.turn()
        self.held.append(self.pulls.held)

    def close(self) -> None:
        """Answer what waits, and write everything."""
        self.pulls.close()
        super().close()

    def outcome(self) -> dict[str, Any]:
        """Return all that must not depend on the lane, after the end."""
        stats = self.stats
        return super().outcome() | {
            "held": self.held,
            "offsets": self.offsets.to_json(),
            "revision": self.offsets.revision,
            "pulled": self.offsets._pulled,
            "groups": self.groups.to_json(),
            "got": (stats.found, stats.misses, stats.got_today),
            "by group": {
                name: (meter.count, meter.size, meter.calls)
                for name, meter in stats._groups.items()
            },
        }

    @contextmanager
    def _patched_pulls(self, mode: str) -> Iterator[None]:
        """Choose the build of the lane."""
        lane = pull_lane if mode == COMPILED else _plain
        with (
            patch.object(server_lane, "PullLane", lane.PullLane),
            patch.object(known_pulls, "AnswerHead", lane.AnswerHead),
        ):
            yield
        known: Any = self.pulls._known
        check, trusted_part = known._check, known._trusted_part

        def check_patched(*given: Any) -> bool:
            with patch.object(known_pulls, "AnswerHead", lane.AnswerHead):
                return bool(check(*given))

        def part_patched(*given: Any) -> Any:
            with patch.object(known_pulls, "LogPart", lane.LogPart):
                return trusted_part(*given)

        known._check, known._trusted_part = check_patched, part_patched


def _subscription(topic: str, tags: str, version: int) -> Subscription:
    if tags.startswith("a ="):
        return Subscription(
            topic=topic, sub_string=tags, expression_type="SQL92", sub_version=version
        )
    return parse_tags(topic, tags, version=version)
