"""Routes: the brokers that serve a topic, and their queues."""

from __future__ import annotations

from typing import Final

import msgspec

MASTER_ID: Final = 0


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, cache_hash=True):
    """One queue of a topic on a broker. Members in the order in which Java writes them."""

    broker_name: str
    queue_id: int
    topic: str

    @property
    def sort_key(self) -> tuple[str, str, int]:
        """Java's order of queues, which all members of a group must share."""
        return self.topic, self.broker_name, self.queue_id


class QueueData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The queues and permission with which a broker serves a topic."""

    broker_name: str
    perm: int = 6
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The addresses of a broker name: id 0 is the master."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str = ""
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        """The master's address, if there is a master."""
        return self.broker_addrs.get(MASTER_ID)

    @property
    def reader(self) -> str | None:
        """The address for questions: the master's, or that of the smallest id without a master."""
        return self.broker_addrs[min(self.broker_addrs)] if self.broker_addrs else None


class TopicRoute(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """The queues of a topic and the addresses of its brokers."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []
