"""Tables of a master that its slaves follow."""

from __future__ import annotations

from typing import Any

from rocketpost.server.replication import tables_feed as feed
from rocketpost.server.replication.tables_apply import TablesReplica
from rocketpost.server.tables import registry

from ..contexts import broker_context

FOLLOWED = {
    registry.TOPICS: feed.TOPICS,
    registry.GROUPS: feed.GROUPS,
    registry.AUTO_TOPICS: feed.AUTO_TOPICS,
    registry.AUTO_GROUPS: feed.AUTO_GROUPS,
    registry.OFFSETS: feed.OFFSETS,
    registry.DELAYS: feed.DELAYS,
    registry.MASTER_TIMER: feed.TIMER,
    registry.REQUEST_MODES: feed.REQUEST_MODES,
    registry.ORDER_INFO: feed.ORDER_INFO,
    registry.NAMED_FILTERS: feed.NAMED_FILTERS,
    registry.ACCESS: feed.ACCESS,
}
OWN = {
    registry.OVERRIDES: "each broker has its own settings",
    registry.GROUP_FILTERS: "consumers send heartbeats with their filters to slaves, too",
}
NOT_UNDER_CONFIG = {feed.DELETIONS}


class Anything:
    """Tables that are never read, only named."""

    def __getattr__(self, name: str) -> Anything:
        return Anything()


def test_every_table_is_followed_or_belongs_to_one_broker() -> None:
    """A new table is listed here, with the name under which slaves follow it or a reason."""
    assert set(registry.SPECS) == {*FOLLOWED, *OWN}
    assert not set(FOLLOWED) & set(OWN)


def test_a_slave_takes_over_everything_that_a_master_sends() -> None:
    anything: Any = Anything()
    context = broker_context(tables=anything, store=anything)
    sent = {source.name for source in feed.table_sources(context, anything)}
    sent.add(feed.access_source(context).name)
    assert sent == {*FOLLOWED.values(), *NOT_UNDER_CONFIG}
    assert sent == {*TablesReplica(context)._apply, *NOT_UNDER_CONFIG}
