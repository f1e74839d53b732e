"""Administration: operators' requests to name servers and brokers, by subject.

::

    async with AdminClient(name_servers="127.0.0.1:9876") as admin:
        for address in await admin.cluster.masters("DefaultCluster"):
            await admin.topics.create(address, TopicConfig(topic_name="Orders"))
            await admin.topics.update(address, "Orders", read_queue_nums=32, write_queue_nums=32)
        print(await admin.topics.state("Orders"))

``create`` makes something new; ``update`` changes the given members and leaves the rest. Calls to a
broker take its address; calls without one ask every broker concerned. Each subject is imported when
it is used, so that a tool starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from rocketpost.client.admin.cluster import ClusterAdmin
from rocketpost.client.config import ClientConfig, with_name_servers
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.session import Session
from rocketpost.errors import ClientError

if TYPE_CHECKING:
    from rocketpost.client.admin.access import AccessAdmin
    from rocketpost.client.admin.brokers import BrokerAdmin
    from rocketpost.client.admin.dead_letter import DeadLetter, Selection
    from rocketpost.client.admin.dead_letters import DeadLetterAdmin
    from rocketpost.client.admin.filters import FilterAdmin
    from rocketpost.client.admin.groups import GroupAdmin
    from rocketpost.client.admin.messages import MessageAdmin
    from rocketpost.client.admin.resending import Outcome, Resent
    from rocketpost.client.admin.topics import TopicAdmin
    from rocketpost.client.admin.transactions import HalfMessage, TransactionAdmin

__all__ = [
    "AccessAdmin",
    "AdminClient",
    "BrokerAdmin",
    "ClusterAdmin",
    "DeadLetter",
    "DeadLetterAdmin",
    "FilterAdmin",
    "GroupAdmin",
    "HalfMessage",
    "MessageAdmin",
    "Outcome",
    "Resent",
    "Selection",
    "TopicAdmin",
    "TransactionAdmin",
]

_HOMES: Final = {
    "AccessAdmin": "access",
    "BrokerAdmin": "brokers",
    "DeadLetter": "dead_letter",
    "DeadLetterAdmin": "dead_letters",
    "FilterAdmin": "filters",
    "GroupAdmin": "groups",
    "HalfMessage": "transactions",
    "MessageAdmin": "messages",
    "Outcome": "resending",
    "Resent": "resending",
    "Selection": "dead_letter",
    "TopicAdmin": "topics",
    "TransactionAdmin": "transactions",
}
"""The modules of the public names, which are imported when they are asked for."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


class AdminClient(Lifecycle):
    """Sends requests to name servers and brokers. Belongs to the event loop.

    Args:
        name_servers: ``host:port;host:port``; overrides that of ``config``.
        config: The other settings.
    """

    def __init__(
        self, *, name_servers: str | None = None, config: ClientConfig | None = None
    ) -> None:
        config = with_name_servers(config or ClientConfig(call_timeout=5.0), name_servers)
        self.config = config
        self._session: Session | None = None

    async def start(self) -> None:
        """Find the name servers.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        if self._session is not None:
            raise ClientError("the admin client is running already")
        session = Session(self.config)
        await session.start()
        self._session = session

    async def stop(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.stop()

    @property
    def session(self) -> Session:
        """The underlying connections, for requests without a method here.

        Raises:
            ClientError: The client is not running.
        """
        if self._session is None:
            raise ClientError("the admin client is not running; use `async with` or call start()")
        return self._session

    @property
    def cluster(self) -> ClusterAdmin:
        """Name servers: brokers, routes, key-value settings, write permission."""
        return ClusterAdmin(self.session)

    @property
    def topics(self) -> TopicAdmin:
        """Topics: create, change, delete, inspect."""
        from rocketpost.client.admin.topics import TopicAdmin

        return TopicAdmin(self.session)

    @property
    def groups(self) -> GroupAdmin:
        """Consumer groups: create, change, delete, progress, connections, offsets."""
        from rocketpost.client.admin.groups import GroupAdmin

        return GroupAdmin(self.session)

    @property
    def brokers(self) -> BrokerAdmin:
        """Brokers: settings, runtime values, statistics, cleaning."""
        from rocketpost.client.admin.brokers import BrokerAdmin

        return BrokerAdmin(self.session)

    @property
    def access(self) -> AccessAdmin:
        """Users and rules: create, change, list, delete."""
        from rocketpost.client.admin.access import AccessAdmin

        return AccessAdmin(self.session)

    @property
    def filters(self) -> FilterAdmin:
        """Named filters of brokers: put, list, delete, test."""
        from rocketpost.client.admin.filters import FilterAdmin

        return FilterAdmin(self.session)

    @property
    def messages(self) -> MessageAdmin:
        """Messages: by key, by id, by offset."""
        from rocketpost.client.admin.messages import MessageAdmin

        return MessageAdmin(self.session)

    @property
    def dead_letters(self) -> DeadLetterAdmin:
        """Dead letters of groups: read and resend."""
        from rocketpost.client.admin.dead_letters import DeadLetterAdmin

        return DeadLetterAdmin(self.session)

    @property
    def transactions(self) -> TransactionAdmin:
        """Transactions: list pending and discarded ones, resume checks."""
        from rocketpost.client.admin.transactions import TransactionAdmin

        return TransactionAdmin(self.session)
